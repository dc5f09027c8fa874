package tracker_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// BenchmarkSection is a section with nothing in it, by what it measures. Where there is
// /proc, "one read" is what the kernel takes to tell the resident set once: a default section asks twice.
func BenchmarkSection(b *testing.B) {
	for _, test := range []struct {
		name     string
		sections tracker.SectionConfig
	}{
		{"default", tracker.SectionConfig{}},
		{"no host", tracker.SectionConfig{NoHost: true}},
		{"ledger only", tracker.SectionConfig{NoHost: true, NoDeviceTime: true}},
		{"host detail", tracker.SectionConfig{HostDetail: true}},
		{"host peak reset", tracker.SectionConfig{ResetHostPeak: true}},
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

// BenchmarkSectionBesideOpen ends the oldest of n open sections and opens another.
func BenchmarkSectionBesideOpen(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("open=%d", n), func(b *testing.B) {
			tr := newBench(b, tracker.Config{Sections: tracker.SectionConfig{NoHost: true, NoDeviceTime: true}})
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
