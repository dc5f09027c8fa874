package tracker_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// nowhere is a writer that keeps nothing, as io.Discard, which means no report, does.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkTrackReport is a Track with 100 groups changed since the last, by where
// its report goes.
func BenchmarkTrackReport(b *testing.B) {
	for _, test := range []struct {
		to  string
		cfg tracker.Config
	}{
		{"nowhere", tracker.Config{}},
		{"writer", tracker.Config{Report: nowhere{}}},
		{"file", tracker.Config{Dir: b.TempDir()}},
	} {
		b.Run("to="+test.to, func(b *testing.B) {
			tr := newBench(b, test.cfg)
			changing := make([]*tracker.Buffer, 100)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				change(b, tr, changing)
				b.StartTimer()
				tr.Track()
			}
		})
	}
}
