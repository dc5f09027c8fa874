package memtrack_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// fake is a backend with two devices, whose buffers are only numbers.
type fake struct {
	compute.Backend
}

func (f fake) NumDevices() int { return 2 }

func (f fake) DeviceDescription(n compute.DeviceNum) string { return fmt.Sprintf("fake device %d", n) }

func (f fake) BufferFromFlatData(n compute.DeviceNum, _ any, shape shapes.Shape) (compute.Buffer, error) {
	if shape.Size() >= 1<<30 {
		return nil, errors.New("PJRT error (code=8): RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.") //nolint:revive // as PJRT writes it
	}
	return &fakeBuffer{shape: shape, device: n}, nil
}

type fakeBuffer struct {
	shape  shapes.Shape
	device compute.DeviceNum
	fails  error
}

func (b *fakeBuffer) Backend() compute.Backend              { return nil }
func (b *fakeBuffer) Finalize() error                       { return b.fails }
func (b *fakeBuffer) Shape() (shapes.Shape, error)          { return b.shape, nil }
func (b *fakeBuffer) DeviceNum() (compute.DeviceNum, error) { return b.device, nil }
func (b *fakeBuffer) ToFlatData(any) error                  { return nil }
func (b *fakeBuffer) Data() (any, error)                    { return nil, nil }

func (b *fakeBuffer) CopyToDevice(n compute.DeviceNum) (compute.Buffer, error) {
	return &fakeBuffer{shape: b.shape, device: n, fails: errors.New("the device is busy")}, nil
}

// TestDevices: each device's buffers are in its own tracker, copies too.
func TestDevices(t *testing.T) {
	first, second := newTracker(t), newTracker(t)
	b := memtrack.Wrap(fake{open(t, "go")}, first, second)
	x, err := b.BufferFromFlatData(0, nil, shapes.Make(dtypes.Float32, 4))
	require.NoError(t, err)
	y, err := x.CopyToDevice(1)
	require.NoError(t, err)
	assert.EqualValues(t, 1, first.LightSnapshot().Live.Count)
	assert.EqualValues(t, 1, second.LightSnapshot().Live.Count)
	assert.Contains(t, second.Leaks()[0].String(), "fake_test.go")
	assert.Equal(t, "copy", allocations(second)[0].Label)

	require.NoError(t, x.Finalize())
	assert.Zero(t, first.LightSnapshot().Live.Count)
	// What cannot be freed stays, and is freed at most once.
	require.EqualError(t, y.Finalize(), "the device is busy")
	assert.EqualValues(t, 1, second.LightSnapshot().Live.Count)

	// Devices without a tracker of their own are the first's.
	b = memtrack.Wrap(fake{open(t, "go")}, first)
	z, err := b.BufferFromFlatData(1, nil, shapes.Make(dtypes.Float32, 4))
	require.NoError(t, err)
	assert.EqualValues(t, 1, first.LightSnapshot().Live.Count)
	require.NoError(t, z.Finalize())
}

// TestOutOfMemory: PJRT's error becomes the tracker's, which names the holders.
func TestOutOfMemory(t *testing.T) {
	tr := newTracker(t)
	b := memtrack.Wrap(fake{open(t, "go")}, tr)
	held, err := b.BufferFromFlatData(0, nil, shapes.Make(dtypes.Float32, 1<<20))
	require.NoError(t, err)
	_, err = b.BufferFromFlatData(0, nil, shapes.Make(dtypes.Float32, 1<<30))
	full := (*tracker.OutOfMemoryError)(nil)
	require.ErrorAs(t, err, &full)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, 4*alloc.GiB, full.Requested)
	assert.Equal(t, alloc.Shape{1 << 30}, full.Shape)
	assert.Contains(t, full.Advice, "truly full: ")
	require.Len(t, full.CallSites, 1)
	assert.Contains(t, full.CallSites[0].String(), "fake_test.go")
	assert.Contains(t, err.Error(), "fake device 0")
	assert.Contains(t, err.Error(), "RESOURCE_EXHAUSTED")
	t.Log(err)
	require.NoError(t, held.Finalize())
}

// failing is a backend whose executables fail with an error.
type failing struct {
	compute.Backend
	err error
}

func (f failing) Builder(name string) compute.Builder {
	return failingBuilder{f.Backend.Builder(name), f.err}
}

type failingBuilder struct {
	compute.Builder
	err error
}

func (f failingBuilder) Compile() (compute.Executable, error) {
	e, err := f.Builder.Compile()
	return failingExecutable{e, f.err}, err
}

type failingExecutable struct {
	compute.Executable
	err error
}

func (f failingExecutable) Execute([]compute.Buffer, []bool, compute.DeviceNum) ([]compute.Buffer, error) {
	return nil, f.err
}

// TestExecutablesThatFail: the inputs stay in the ledger, and an error is explained if memory was missing.
func TestExecutablesThatFail(t *testing.T) {
	for text, requested := range map[string]alloc.Bytes{
		"PJRT error (code=8): RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.": 16 * alloc.GiB,
		"PJRT error (code=8): Out of memory while trying to allocate 1.50GiB":                                1536 * alloc.MiB,
		"PJRT error (code=8): no room": -1,
		"PJRT error (code=3): wrong":   0,
	} {
		tr := newTracker(t)
		b := memtrack.Wrap(failing{open(t, "go"), errors.New(text)}, tr)
		x, err := b.BufferFromFlatData(0, []float32{1, 2}, shapes.Make(dtypes.Float32, 2))
		require.NoError(t, err)
		exec := compiled(t, b, shapes.Make(dtypes.Float32, 2))
		_, err = exec.Execute([]compute.Buffer{x}, []bool{true}, 0)
		require.ErrorContains(t, err, text)
		assert.EqualValues(t, 1, tr.LightSnapshot().Live.Count, "what was donated is not gone for sure")
		full := (*tracker.OutOfMemoryError)(nil)
		if requested == 0 {
			assert.False(t, errors.As(err, &full), "%v", err)
			assert.NotErrorIs(t, err, alloc.ErrOutOfMemory)
		} else if assert.ErrorAs(t, err, &full) {
			assert.Equal(t, requested, full.Requested, "%v", err)
		}
		require.NoError(t, x.Finalize())
		assert.Zero(t, tr.LightSnapshot().Live.Count)
	}
}

// compiled returns a computation of one input, which it returns negated.
func compiled(t *testing.T, b compute.Backend, shape shapes.Shape) compute.Executable {
	t.Helper()
	builder := b.Builder(t.Name())
	main := builder.Main()
	x, err := main.Parameter("x", shape, nil)
	require.NoError(t, err)
	y, err := main.Neg(x)
	require.NoError(t, err)
	require.NoError(t, main.Return([]compute.Value{y}, nil))
	exec, err := builder.Compile()
	require.NoError(t, err)
	return exec
}

// TestWrongInputs: what the backend refuses, the wrapper leaves to it.
func TestWrongInputs(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		exec := compiled(t, b, shapes.Make(dtypes.Float32, 2))
		x, err := b.BufferFromFlatData(0, []float32{1, 2}, shapes.Make(dtypes.Float32, 2))
		require.NoError(t, err)
		for _, inputs := range [][]compute.Buffer{{}, {x, x}} {
			_, err := exec.Execute(inputs, nil, 0)
			assert.Error(t, err)
		}
		out, err := exec.Execute([]compute.Buffer{x}, nil, 0)
		require.NoError(t, err)
		assert.EqualValues(t, 2, tr.LightSnapshot().Live.Count)
		require.NoError(t, out[0].Finalize())
		require.NoError(t, x.Finalize())
	})
}
