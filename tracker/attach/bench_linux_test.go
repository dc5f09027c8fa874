//go:build amd64 || arm64

package attach

import (
	"strconv"
	"syscall"
	"testing"
	"time"
)

// BenchmarkAllocFree is a pair of cuMemAlloc and cuMemFree of the emulated driver in a C
// program, alone and watched, in processor time of the program. watcher-ns/op is that of the watcher.
func BenchmarkAllocFree(b *testing.B) {
	path := buildC(b, "-DLINKED")
	for name, watch := range map[string]bool{"alone": false, "watched": true} {
		b.Run(name, func(b *testing.B) {
			w := newWatcher(b, Config{})
			before := processorTime(b)
			starter := w
			if !watch {
				w.Close()
				starter = nil
			}
			c := start(b, starter, path, "churn", strconv.Itoa(b.N))
			c.live(b)
			b.ReportMetric(c.churn/float64(b.N), "ns/op")
			if watch {
				w.Sync()
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "watcher-ns/op")
				b.ReportMetric(float64(w.Lost().Events), "lost-events")
			}
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
