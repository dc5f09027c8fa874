package memtrack

import (
	"runtime"
	"time"

	"github.com/gomlx/compute"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// VerifyNoLeaks fails the test if buffers of a wrapped backend are live that the program can still
// reach. It runs Go's collector first, so tensors that the program has only forgotten do not count.
// The options leave out what may stay, such as a model's variables:
//
//	defer memtrack.VerifyNoLeaks(t, backend, leaks.Since(tr.Snapshot()))
func VerifyNoLeaks(t interface{ Errorf(string, ...any) }, wrapped compute.Backend, opts ...leaks.Option) {
	b, ours := wrapped.(*backend)
	if !ours {
		t.Errorf("verify no leaks: the backend %q is not one of memtrack.Wrap, so no tracker knows its buffers", wrapped.Name())
		return
	}
	for _, tr := range b.trackers {
		collect(tr, opts)
		tracker.VerifyNoLeaks(t, tr, opts...)
	}
}

// collect runs Go's collector until nothing is left, or for a while: its cleanups run some time after it.
func collect(tr *tracker.MemTracker, opts []leaks.Option) {
	for wait := time.Millisecond; wait < time.Second && len(tr.Leaks(opts...)) > 0; wait *= 2 {
		runtime.GC()
		time.Sleep(wait)
	}
}
