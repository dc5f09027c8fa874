package tracker

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// collect runs the Go collector, and waits until the cleanups and finalizers that
// it queued have run, which runtime.GC does not; for a second at most, since one of
// them may block.
func collect() {
	runtime.GC()
	counts := []metrics.Sample{
		{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/finalizers/queued:finalizers"},
		{Name: "/gc/cleanups/executed:cleanups"}, {Name: "/gc/finalizers/executed:finalizers"},
	}
	metrics.Read(counts)
	cleanups, finalizers := counts[0].Value.Uint64(), counts[1].Value.Uint64()
	executed := counts[2:]
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Microsecond) {
		if executed[0].Value.Uint64() >= cleanups && executed[1].Value.Uint64() >= finalizers {
			return
		}
		metrics.Read(executed)
	}
}
