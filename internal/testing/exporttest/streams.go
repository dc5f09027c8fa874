package exporttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// The streams of Streams.
const (
	Compute  alloc.Stream = 0x7f0000001000
	Transfer alloc.Stream = 0x7f0000002000
)

// Streams runs a program with two streams: three batches of 3 MiB, each copied on one stream
// and used on the other. The work on the first is done before it ends, that on the
// other two is not. The result is the tracker's device, whose clock stands still.
func Streams(t testing.TB, cfg tracker.Config) (*tracker.MemTracker, sim.Device) {
	t.Helper()
	device, err := sim.New(sim.Config{CheckReuse: true})
	require.NoError(t, err)
	cfg.Device = device
	tr := New(t, cfg)
	for range 3 {
		batch(t, tr, device)
	}
	device.Advance(time.Second)
	_, err = tr.AllocOn(Compute, alloc.Shape{100}, alloc.Float32, tracker.Parameter)
	require.NoError(t, err)
	require.NoError(t, device.Err())
	return tr, device
}

func batch(t testing.TB, tr *tracker.MemTracker, device sim.Device) {
	b, err := tr.AllocOn(Compute, alloc.Shape{3 << 20}, alloc.Uint8, tracker.Input)
	require.NoError(t, err)
	require.NoError(t, device.Queue(Transfer, b.Ptr(), b.Bytes(), time.Second))
	require.NoError(t, b.FreeOn(Transfer))
}
