package sim

import (
	"fmt"
	"path"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
)

func callers() []uintptr {
	calls := make([]uintptr, 32)
	return calls[:runtime.Callers(2, calls)]
}

// line returns the line of the user's code among calls: "main.step train.go:12".
func line(calls []uintptr) string {
	var all []runtime.Frame
	frames := runtime.CallersFrames(calls)
	for more := len(calls) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		all = append(all, f)
	}
	rule := callsite.Rule{Go: callsite.GoLibraries}
	i, _ := callsite.Find(len(all), func(i int) callsite.Rank { return rule.Rank(all[i].Function, all[i].File) })
	if i < 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s %s:%d", path.Base(all[i].Function), path.Base(all[i].File), all[i].Line)
}
