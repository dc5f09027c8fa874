package spinlock

import (
	"fmt"
	"path"
	"runtime"
	"strings"
	"time"
)

// Hold is a time during which a Mutex was locked, in time of its processor: that for which
// the operating system had others run does not count.
type Hold struct {
	Time  time.Duration
	calls []uintptr // of the Unlock
}

// String prints the time and the functions that led there: "0.012 ms tracker.(*history).read <- tracker.(*MemTracker).History".
func (h Hold) String() string {
	text := fmt.Sprintf("%.3f ms", h.Time.Seconds()*1e3)
	between := " "
	for frames, more := runtime.CallersFrames(h.calls), true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, "runtime.") {
			break
		}
		text += between + path.Base(f.Function)
		between = " <- "
	}
	return text
}
