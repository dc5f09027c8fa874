//go:build amd64 || arm64

package attach

import (
	"os/exec"
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
			churn(b, ways[name], path, "churn", strconv.Itoa(b.N))
		})
	}
}

// churn runs a program that prints what its N pairs took. It is watched unless watcher is nil.
func churn(b *testing.B, watcher func(testing.TB) *Watcher, path string, args ...string) {
	var w *Watcher
	if watcher != nil {
		w = watcher(b)
	}
	before := processorTime(b)
	c := start(b, w, path, args...)
	c.live(b)
	b.ReportMetric(c.churn/float64(b.N), "ns/op")
	if w != nil {
		w.Sync()
		b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "watcher-ns/op")
		b.ReportMetric(float64(w.lostEvents()), "lost-events")
	}
}

// BenchmarkStacks is a pair of cuMemAlloc and cuMemFree some 20 calls deep in a program without frame pointers, always on the same stack or
// each time on a new one. It is told apart what the calls themselves take, and what watching adds.
func BenchmarkStacks(b *testing.B) {
	path := build(b, "calls", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O2", "-fomit-frame-pointer", "-o", out, "testdata/calls.c", "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	for _, stacks := range []string{"same", "new"} {
		for _, name := range []string{"alone", "probes", "preload"} {
			b.Run(stacks+"/"+name, func(b *testing.B) { churn(b, ways[name], path, stacks, strconv.Itoa(b.N)) })
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkPython is a pair of cuMemAlloc and cuMemFree under so many functions of Python, in each version that this machine has.
func BenchmarkPython(b *testing.B) {
	here := pythonsHere()
	for _, version := range pythonVersions {
		for _, depth := range []string{"5", "20", "60", "120"} {
			for _, name := range []string{"alone", "probes", "preload"} {
				if here[version] != "" {
					b.Run(version+"/"+depth+"/"+name, func(b *testing.B) {
						churn(b, ways[name], here[version], "testdata/pychurn.py", strconv.Itoa(b.N), depth)
					})
				}
			}
		}
	}
}
