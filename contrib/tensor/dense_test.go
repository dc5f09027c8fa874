package tensor_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gorgonia "gorgonia.org/tensor"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/contrib/tensor"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func newTracker(t *testing.T, cfg sim.Config) (*tracker.MemTracker, sim.Device) {
	t.Helper()
	dev, err := sim.New(cfg)
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	return tr, dev
}

// TestThereAndBack makes a Dense over a buffer, and finds the buffer again.
func TestThereAndBack(t *testing.T) {
	tr, dev := newTracker(t, sim.Config{Backed: true})
	e := tensor.NewEngine(tr)
	w, err := e.New(alloc.Shape{2, 3}, alloc.Float32, tracker.Parameter)
	require.NoError(t, err)
	require.Equal(t, gorgonia.Shape{2, 3}, w.Shape())
	require.Equal(t, gorgonia.Float32, w.Dtype())
	require.False(t, w.IsNativelyAccessible())
	require.True(t, w.IsManuallyManaged())
	buf, err := e.BufferOf(w)
	require.NoError(t, err)
	buf.SetLabel("fc.weight")
	for a := range tr.Snapshot().Allocations() {
		require.Equal(t, "Parameter (2, 3) float32 fc.weight", fmt.Sprint(a.Kind, " ", a.Shape, " ", a.DType, " ", a.Label))
	}

	values := gorgonia.New(gorgonia.WithShape(2, 3), gorgonia.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	require.NoError(t, e.Memcpy(w, values))
	other, err := e.New(alloc.Shape{6}, alloc.Float32, tracker.Gradient)
	require.NoError(t, err)
	require.NoError(t, e.Memcpy(other, w), "from buffer to buffer")
	back := gorgonia.New(gorgonia.Of(gorgonia.Float32), gorgonia.WithShape(2, 3))
	require.NoError(t, e.Memcpy(back, other))
	require.Equal(t, values.Data(), back.Data())
	out := make([]float32, 6)
	require.NoError(t, tracker.CopyOut(buf, out))
	require.Equal(t, values.Data(), out)

	e.Memclr(w)
	zeros, err := e.Accessible(w)
	require.NoError(t, err)
	require.NoError(t, e.Memcpy(w, values))
	require.NoError(t, e.Memcpy(w, zeros))
	require.NoError(t, tracker.CopyOut(buf, out))
	require.Equal(t, make([]float32, 6), out)

	require.ErrorIs(t, e.Memset(w, 1), errors.ErrUnsupported)
	require.ErrorContains(t, e.Memcpy(w, make8()), "want as many")
	require.ErrorIs(t, e.Memcpy(values, back), alloc.ErrUnknownPtr)
	require.NoError(t, e.Release(w))
	require.ErrorIs(t, e.Release(w), alloc.ErrUnknownPtr)
	require.NoError(t, e.Release(other))
	tracker.VerifyNoLeaks(t, tr)
	require.NoError(t, dev.Err())
}

func make8() gorgonia.Memory { return gorgonia.New(gorgonia.Of(gorgonia.Int64), gorgonia.WithShape(1)) }

// TestGorgoniaAllocates has gorgonia.org/tensor ask the engine for memory: it names no shape.
func TestGorgoniaAllocates(t *testing.T) {
	tr, dev := newTracker(t, sim.Config{})
	e := tensor.NewEngine(tr)
	d := gorgonia.New(gorgonia.Of(gorgonia.Float64), gorgonia.WithShape(4, 4), gorgonia.WithEngine(e))
	require.EqualValues(t, 128, tr.LightSnapshot().Live.Bytes)
	require.Equal(t, "tensors in "+tr.String(), fmt.Sprint(e))
	dev.Inject(sim.Fault{Call: "Alloc"})
	_, err := e.New(alloc.Shape{1 << 30}, alloc.Float32, tracker.Input)
	require.Error(t, err)
	require.EqualValues(t, 1, tr.LightSnapshot().Live.Count)
	for _, shape := range []alloc.Shape{{0}, {2}} {
		_, err = e.New(shape, alloc.BFloat16, tracker.Input)
		require.ErrorContains(t, err, "has none such")
	}
	scalar, err := e.New(nil, alloc.Float32, tracker.Input)
	require.NoError(t, err)
	require.True(t, scalar.IsScalar())
	require.NoError(t, e.Release(scalar))
	require.ErrorIs(t, e.Memcpy(d, d), errors.ErrUnsupported)
	require.NoError(t, e.Release(d))
	require.Zero(t, tr.LightSnapshot().Live)
}

func Example() {
	dev, err := sim.New(sim.Config{Backed: true})
	if err != nil {
		log.Fatal(err)
	}
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	e := tensor.NewEngine(tr)
	w, err := e.New(alloc.Shape{64, 3, 7, 7}, alloc.Float32, tracker.Parameter)
	if err != nil {
		log.Fatal(err)
	}
	buf, err := e.BufferOf(w)
	if err != nil {
		log.Fatal(err)
	}
	buf.SetLabel("conv1.weight")
	for a := range tr.Snapshot().Allocations() {
		fmt.Println(a.Kind, a.Shape, a.DType, a.Label)
	}
	if err := e.Release(w); err != nil {
		log.Fatal(err)
	}
	// Output: Parameter (64, 3, 7, 7) float32 conv1.weight
}
