package memtrack_test

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	_ "github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/compute/support/backendtest"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // as programs that use GoMLX do
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// configs are the backends to test: GoMLX's own in plain Go, and XLA with the plugin for CPUs that PJRT_CPU_PLUGIN
// names. CI fetches one.
func configs(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{"go": "go"}
	if plugin := os.Getenv("PJRT_CPU_PLUGIN"); plugin != "" && xlaIsThere {
		all["xla"] = "xla:" + plugin
	}
	return all
}

// eachBackend runs a test over each backend, wrapped.
func eachBackend(t *testing.T, test func(t *testing.T, b compute.Backend, tr *tracker.MemTracker)) {
	t.Helper()
	all := configs(t)
	if all["xla"] == "" {
		t.Run("xla", func(t *testing.T) {
			t.Skip("no plugin of XLA for CPUs: PJRT_CPU_PLUGIN names none, or the tests are built without cgo")
		})
	}
	for name, config := range all {
		t.Run(name, func(t *testing.T) {
			tr := newTracker(t)
			test(t, memtrack.Wrap(open(t, config), tr), tr)
		})
	}
}

// opened are the backends: XLA's plugin is loaded once in a process.
var opened sync.Map

func open(t testing.TB, config string) compute.Backend {
	t.Helper()
	if b, ok := opened.Load(config); ok {
		return b.(compute.Backend)
	}
	b, err := compute.NewWithConfig(config)
	require.NoError(t, err)
	opened.Store(config, b)
	return b
}

func newTracker(t testing.TB) *tracker.MemTracker {
	t.Helper()
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// matrix returns rows and columns of zeros.
func matrix(rows, columns int) *tensors.Tensor {
	values := make([][]float32, rows)
	for i := range values {
		values[i] = make([]float32, columns)
	}
	return tensors.FromValue(values)
}

// collected runs Go's collector until a condition holds: its cleanups run some time after it.
func collected(t *testing.T, tr *tracker.MemTracker, condition func() bool) {
	t.Helper()
	for wait := time.Millisecond; !condition(); wait *= 2 {
		if wait > 10*time.Second {
			require.FailNow(t, "the collector does not take it", "%v", tr.Leaks())
		}
		runtime.GC()
		time.Sleep(wait)
	}
}

// settle waits until so many buffers are live.
func settle(t *testing.T, tr *tracker.MemTracker, live int64) {
	t.Helper()
	collected(t, tr, func() bool { return tr.LightSnapshot().Live.Count == live })
}

// TestGoMLXsOwnSuite: what a backend must do, it does when it is wrapped.
func TestGoMLXsOwnSuite(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, _ *tracker.MemTracker) {
		var options *backendtest.AllTestsConfiguration
		if b.Name() != "go" { // what go-xla's own tests leave out
			options = &backendtest.AllTestsConfiguration{ConvGeneralDTypes: []dtypes.DType{dtypes.Float32, dtypes.Float64}}
		}
		backendtest.RunAll(t, b, options)
	})
}

// TestLeak finds the results that a program keeps, with the line that made them.
func TestLeak(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		step := MustNewExec(b, func(x, w *Node) *Node { return Tanh(MatMul(x, w)) })
		w := matrix(256, 256)
		x := matrix(32, 256)
		step.MustCall(x, w)[0].MustFinalizeAll()
		x.MustFinalizeAll()
		before := tr.Snapshot()
		var kept []*tensors.Tensor
		for i := range 20 {
			x := matrix(32, 256)
			y := step.MustCall(x, w)[0]
			x.MustFinalizeAll()
			if i%5 == 0 {
				kept = append(kept, y)
			} else {
				y.MustFinalizeAll()
			}
		}
		found := tr.Leaks(leaks.Since(before))
		require.Len(t, found, 1)
		assert.EqualValues(t, 4, found[0].Count)
		assert.Equal(t, alloc.Shape{32, 256}, found[0].Shape)
		assert.Equal(t, alloc.Float32, found[0].DType)
		assert.Equal(t, tracker.Activation, found[0].Kind)
		assert.Contains(t, found[0].String(), "memtrack_test.go")
		assert.Contains(t, found[0].String(), "TestLeak")

		said := &failures{}
		memtrack.VerifyNoLeaks(said, b, leaks.Since(before))
		assert.Contains(t, strings.Join(said.texts, "\n"), "memtrack_test.go")
		runtime.KeepAlive(kept)
		memtrack.VerifyNoLeaks(t, b, leaks.Since(before)) // the collector has them
		runtime.KeepAlive(w)
	})
}

// TestCollector runs eight goroutines, of which every other tensor is left to the collector.
func TestCollector(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		step := MustNewExec(b, func(x, w *Node) *Node { return Tanh(MatMul(x, w)) })
		w := matrix(64, 64)
		w.MustMaterializeOnDevice(b, false, 0) // GoMLX races with itself if several goroutines do it
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 100 {
					x := matrix(8, 64)
					y := step.MustCall(x, w)[0]
					if i%2 == 0 {
						y.MustFinalizeAll()
						x.MustFinalizeAll()
					}
				}
			})
		}
		wg.Wait()
		settle(t, tr, 1)
		assert.Equal(t, alloc.Bytes(64*64*4), tr.LightSnapshot().Live.Bytes)
		w.MustFinalizeAll()
		settle(t, tr, 0)
	})
}

// TestDonation: a buffer that is donated is no longer live when its successor is, also not at the peak.
func TestDonation(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		next := MustNewExec(b, func(x *Node) *Node { return AddScalar(x, 1) })
		x := matrix(512, 512)
		for range 10 {
			given, err := DonateTensorBuffer(x, b, 0)
			require.NoError(t, err)
			x = next.MustCall(given)[0]
		}
		s := tr.LightSnapshot()
		assert.EqualValues(t, 1, s.Live.Count)
		assert.Equal(t, alloc.MiB, s.Live.Bytes)
		assert.Equal(t, alloc.MiB, s.Peak.Bytes)
		x.MustFinalizeAll()
		assert.Zero(t, tr.LightSnapshot().Live.Count)
	})
}

// TestSharedBuffer: memory that Go and the device share is entered once, and can be written to.
func TestSharedBuffer(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		if !b.HasSharedBuffers() {
			t.Skip("the backend shares no buffers")
		}
		buf, flat, err := b.NewSharedBuffer(0, shapes.Make(dtypes.Int32, 2, 3))
		require.NoError(t, err)
		copy(flat.([]int32), []int32{1, 2, 3, 4, 5, 6})
		assert.EqualValues(t, 1, tr.LightSnapshot().Live.Count)
		assert.EqualValues(t, 24, tr.LightSnapshot().Live.Bytes)
		assert.Same(t, b, buf.Backend())
		x := fromBuffer(t, buf)
		y := MustNewExec(b, func(x *Node) *Node { return AddScalar(x, 1) }).MustCall(x)[0]
		assert.Equal(t, [][]int32{{2, 3, 4}, {5, 6, 7}}, y.Value())
		require.NoError(t, y.FinalizeAll())
		require.NoError(t, x.FinalizeAll())
		assert.Zero(t, tr.LightSnapshot().Live.Count)
		_ = buf.Finalize() // again: the ledger does not mind, whatever the backend says
		assert.Zero(t, tr.LightSnapshot().Live.Count)
	})
}

// TestResultsThatAreInputs: each result is a buffer of its own, also if it is an input, or twice the same value.
func TestResultsThatAreInputs(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		twice := MustNewExec(b, func(x *Node) []*Node { y := AddScalar(x, 1); return []*Node{x, y, y} })
		x := matrix(4, 4)
		out := twice.MustCall(x)
		assert.EqualValues(t, 4, tr.LightSnapshot().Live.Count)
		for _, o := range append(out, x) {
			o.MustFinalizeAll()
		}
		assert.Zero(t, tr.LightSnapshot().Live.Count)
	})
}

// TestTypes: types that the ledger does not have count as bytes.
func TestTypes(t *testing.T) {
	tr := newTracker(t)
	b := memtrack.Wrap(fake{open(t, "go")}, tr)
	for dtype, bytes := range map[dtypes.DType]int{
		dtypes.Bool: 12, dtypes.BFloat16: 24, dtypes.Complex128: 192, dtypes.F8E4M3B11FNUZ: 12, dtypes.Uint4: 6, dtypes.Int2: 3,
	} {
		shape := shapes.Make(dtype, 6, 2)
		was := tr.LightSnapshot().Live.Bytes
		buf, err := b.BufferFromFlatData(0, nil, shape)
		require.NoError(t, err)
		assert.EqualValues(t, bytes, tr.LightSnapshot().Live.Bytes-was, "%v", dtype)
		require.NoError(t, buf.Finalize())
	}
	scalar, err := b.BufferFromFlatData(0, nil, shapes.Make(dtypes.Float32))
	require.NoError(t, err)
	empty, err := b.BufferFromFlatData(0, nil, shapes.Make(dtypes.Float32, 3, 0))
	require.NoError(t, err)
	assert.EqualValues(t, 2, tr.LightSnapshot().Live.Count)
	assert.EqualValues(t, 4, tr.LightSnapshot().Live.Bytes)
	require.NoError(t, scalar.Finalize())
	require.NoError(t, empty.Finalize())
}

// TestClosedTracker: a program goes on when its tracker is closed.
func TestClosedTracker(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	require.NoError(t, err)
	b := memtrack.Wrap(open(t, "go"), tr)
	next := MustNewExec(b, func(x *Node) *Node { return AddScalar(x, 1) })
	x := matrix(2, 2)
	y := next.MustCall(x)[0]
	require.NoError(t, tr.Close())
	z := next.MustCall(y)[0]
	assert.Equal(t, [][]float32{{2, 2}, {2, 2}}, z.Value())
	for _, each := range []*tensors.Tensor{x, y, z} {
		require.NoError(t, each.FinalizeAll())
	}
}

// failures is a test that only says what it would have.
type failures struct{ texts []string }

func (f *failures) Errorf(format string, args ...any) {
	f.texts = append(f.texts, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func TestVerifyNoLeaksWantsAWrappedBackend(t *testing.T) {
	said := &failures{}
	memtrack.VerifyNoLeaks(said, open(t, "go"))
	require.Len(t, said.texts, 1)
	assert.Contains(t, said.texts[0], "memtrack.Wrap")
}

func fromBuffer(t *testing.T, buf compute.Buffer) *tensors.Tensor {
	t.Helper()
	x, err := tensors.FromBuffer(buf)
	require.NoError(t, err)
	return x
}

// allocations are the live buffers.
func allocations(tr *tracker.MemTracker) []snapshot.Allocation {
	return slices.Collect(tr.Snapshot().Allocations())
}
