package attach

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// callSite returns the line that asked for the memory, as far as the stack tells.
func callSite(s snapshot.Stack) snapshot.Frame {
	i, _ := callsite.Find(len(s), func(i int) callsite.Rank { return rank(s[i]) })
	if i < 0 {
		return snapshot.Frame{}
	}
	return s[i]
}

var rule = callsite.Rule{Go: callsite.GoLibraries}

// rank is the project's rule, which knows the code of other languages, and before it what only
// the stack of a whole process has: the way from one language to another, and code without names.
func rank(f snapshot.Frame) callsite.Rank {
	switch {
	case strings.HasPrefix(path.Base(f.File), "libcuda.so"),
		strings.Contains(f.Function, "._Cfunc_"),
		slices.ContainsFunc(passers, func(p string) bool { return strings.HasPrefix(f.Function, p) || strings.Contains(f.File, p+"@") }):
		return callsite.Machinery
	case strings.HasPrefix(f.Function, "0x"), strings.Contains(f.Function, ".so") && strings.Contains(f.Function, "+0x"):
		return callsite.Note
	case strings.Contains(f.Function, "+0x"): // of the program itself, whose names were stripped
		return callsite.Standard
	}
	return rule.Rank(f.Function, f.File)
}

// passers only pass calls on: the beginnings of functions' names, of which some are modules.
var passers = []string{
	"_cgo_", "crosscall", "x_cgo_", "_Py", "Py", "py::", "_start", "syscall.", "internal/runtime/",
	"github.com/ebitengine/purego", "github.com/gpumemtrack/gpumemtrack/internal/dylib",
}
