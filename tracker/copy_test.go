package tracker_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// half is stored as Float16, which Go lacks.
type half uint16

func (half) DType() alloc.DType { return alloc.Float16 }

// TestCopies copies on the device that a program has without a GPU.
func TestCopies(t *testing.T) {
	t.Setenv("GPUMEMTRACK_DEVICE", "sim")
	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()

	x, err := tracker.Make[float32](tr, alloc.Shape{2, 3}, tracker.Unspecified)
	require.NoError(t, err)
	got := make([]float32, 6)
	require.NoError(t, tracker.CopyOut(x, got))
	assert.Equal(t, make([]float32, 6), got, "fresh memory")
	want := []float32{1, -2.5, 3, 4, 5, 6}
	require.NoError(t, tracker.CopyIn(x, want))
	require.NoError(t, tracker.CopyIn(x, []float32{7}), "a part, from the beginning")
	require.NoError(t, tracker.CopyOut(x, got))
	assert.Equal(t, []float32{7, -2.5, 3, 4, 5, 6}, got)
	require.NoError(t, tracker.CopyIn(x, []float32(nil)))

	h, err := tr.Alloc(alloc.Shape{2}, alloc.Float16, tracker.Parameter)
	require.NoError(t, err)
	require.NoError(t, tracker.CopyIn(h, []half{0x3c00, 0xc000}))
	halves := make([]half, 2)
	require.NoError(t, tracker.CopyOut(h, halves))
	assert.Equal(t, []half{0x3c00, 0xc000}, halves)

	raw, err := tr.AllocBytes(16, tracker.Temporary)
	require.NoError(t, err)
	require.NoError(t, tracker.CopyIn(raw, []int64{1, -1}), "bytes are of any type")
	bytes := make([]byte, 16)
	require.NoError(t, tracker.CopyOut(raw, bytes))
	assert.Equal(t, byte(255), bytes[15])

	require.ErrorIs(t, tracker.CopyIn(x, make([]float32, 7)), alloc.ErrSize)
	require.ErrorIs(t, tracker.CopyOut(raw, make([]int64, 3)), alloc.ErrSize)
	require.ErrorContains(t, tracker.CopyIn(x, []int32{1}), "elements of int32: want float32")
	require.ErrorContains(t, tracker.CopyIn(h, []uint16{1}), "want float16")
	require.NoError(t, x.Free())
	require.ErrorIs(t, tracker.CopyIn(x, want), alloc.ErrUnknownPtr)
	for _, b := range []*tracker.Buffer{h, raw} {
		require.NoError(t, b.Free())
	}
}

func TestCopiesThatCannotBe(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: counting.New(0)})
	require.ErrorIs(t, tracker.CopyIn(take(t, tr, tracker.Input, 1), []float32{1}), errors.ErrUnsupported)
	dev := device(t, sim.Config{Backed: true})
	tr, _ = open(t, tracker.Config{Device: dev})
	x := take(t, tr, tracker.Input, 1)
	dev.Inject(sim.Fault{Call: "Copy"})
	require.ErrorIs(t, tracker.CopyOut(x, []float32{1}), sim.ErrInjected)
}
