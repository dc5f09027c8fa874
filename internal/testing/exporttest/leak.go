package exporttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Leaky returns a tracker whose program forgot one of a hundred buffers of 1 KiB,
// 45 in 45 seconds, and called Track 75 times.
func Leaky(t testing.TB) *tracker.MemTracker {
	t.Helper()
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := New(t, tracker.Config{Clock: func() time.Time { return now }})
	for i := range 4500 {
		forget(t, tr, i%100 == 0, func() { now = now.Add(10 * time.Millisecond) })
		if i%60 == 0 {
			tr.Track()
		}
	}
	return tr
}

func forget(t testing.TB, tr *tracker.MemTracker, leaks bool, work func()) {
	b, err := tr.AllocBytes(alloc.KiB, tracker.Activation)
	require.NoError(t, err)
	work()
	if !leaks {
		require.NoError(t, b.Free())
	}
}
