//go:build amd64 || arm64

package attach

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkAllocFree is a pair of cuMemAlloc and cuMemFree of the emulated driver in a C
// program, alone and watched, in processor time of the program. watcher-ns/op is that of the watcher.
// With -benchtime 1000000x it is a burst of a million.
func BenchmarkAllocFree(b *testing.B) {
	framed := buildC(b, "-DLINKED")
	for _, name := range []string{"alone", "probes", "preload", "probes without frame pointers"} {
		b.Run(name, func(b *testing.B) {
			path := framed
			if way, frameless, _ := strings.Cut(name, " "); frameless != "" {
				path, name = buildC(b, "-DLINKED", "-O2", "-fomit-frame-pointer"), way
			}
			var w *Watcher
			if watcher := ways[name]; watcher != nil {
				w = watcher(b)
			}
			before := processorTime(b)
			c := start(b, w, path, "churn", strconv.Itoa(b.N))
			c.live(b)
			b.ReportMetric(c.churn/float64(b.N), "ns/op")
			if w != nil {
				w.Sync()
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "watcher-ns/op")
				b.ReportMetric(float64(w.lostEvents().events), "lost-events")
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
