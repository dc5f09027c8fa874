package tracker_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// BenchmarkSection is a section with nothing in it, by what it measures. Where there is
// /proc, "one read" is what the kernel takes to tell the resident set once. A default section asks
// twice where it takes longer, and begins later, than 10 µs after the last: see BenchmarkSectionApart.
func BenchmarkSection(b *testing.B) {
	for _, test := range []struct {
		name     string
		sections tracker.SectionConfig
	}{
		{"default", tracker.SectionConfig{}},
		{"no host", tracker.SectionConfig{Host: "none"}},
		{"ledger only", tracker.SectionConfig{Host: "none", NoDeviceTime: true}},
		{"host detail", tracker.SectionConfig{Host: "detail"}},
		{"host peak reset", tracker.SectionConfig{Host: "peak"}},
	} {
		b.Run(test.name, func(b *testing.B) {
			tr := newBench(b, tracker.Config{Sections: test.sections})
			b.ReportAllocs()
			for b.Loop() {
				tr.Section("step").End()
			}
		})
	}
	b.Run("one read", func(b *testing.B) {
		statm, err := os.Open("/proc/self/statm")
		if err != nil {
			b.Skip(err)
		}
		defer statm.Close()
		var text [24]byte
		for b.Loop() {
			if _, err := statm.ReadAt(text[:], 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSectionApart is a section of 15 µs, 15 µs after the last, without the 30 µs.
func BenchmarkSectionApart(b *testing.B) {
	wait := func() {
		for begun := time.Now(); time.Since(begun) < 15*time.Microsecond; {
		}
	}
	tr := newBench(b, tracker.Config{})
	var waited time.Duration
	for b.Loop() {
		begun := time.Now()
		wait()
		waited += time.Since(begun)
		s := tr.Section("step")
		begun = time.Now()
		wait()
		waited += time.Since(begun)
		s.End()
	}
	b.ReportMetric(float64(b.Elapsed()-waited)/float64(b.N), "ns/section")
}

// BenchmarkSectionBesideOpen ends the oldest of n open sections and opens another.
func BenchmarkSectionBesideOpen(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("open=%d", n), func(b *testing.B) {
			tr := newBench(b, tracker.Config{Sections: tracker.SectionConfig{Host: "none", NoDeviceTime: true}})
			root := tr.Section("root")
			open := make([]*tracker.Section, n)
			for i := range open {
				open[i] = root.Section("request")
			}
			i := 0
			for b.Loop() {
				open[i].End()
				open[i] = root.Section("request")
				i = (i + 1) % n
			}
		})
	}
}
