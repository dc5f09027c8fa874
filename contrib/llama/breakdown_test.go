//go:build !windows

package memtrack

import (
	"io"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// fake is llama.cpp with a model on two GPUs and the host. Its handles are any numbers.
func fake(t *testing.T, trackers int) *Library {
	t.Helper()
	names := []string{"CPU", "CUDA0", "CUDA1"}
	l := &Library{registered: make(map[uintptr][]entry), functions: functions{
		modelSize: func(uintptr) uint64 { return 700 },
		stateSize: func(uintptr) uint64 { return 50 },
		onHost:    func(of uintptr) bool { return of == 0 },
		typeName:  func(of uintptr) string { return names[of] },
		free:      func(unsafe.Pointer) {},
	}}
	l.functions.modelBreakdown = func(uintptr) tree {
		return tree{count: 3, root: &node{
			bufferType: 1, sizes: [3]uintptr{200},
			left:  &node{bufferType: 0, sizes: [3]uintptr{100}},
			right: &node{bufferType: 2, sizes: [3]uintptr{400}},
		}}
	}
	l.functions.contextBreakdown = func(uintptr) tree {
		return tree{count: 1, root: &node{bufferType: 2, sizes: [3]uintptr{400, 30, 7}}}
	}
	for range trackers {
		dev, err := sim.New(sim.Config{})
		require.NoError(t, err)
		tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
		require.NoError(t, err)
		t.Cleanup(func() { tr.Close() })
		l.trackers = append(l.trackers, tr)
	}
	return l
}

// live sums what is live of a kind, on the device and on the host.
func live(tr *tracker.MemTracker, kind tracker.Kind) (device, host alloc.Bytes) {
	for a := range tr.Snapshot().Allocations() {
		switch {
		case a.Kind == kind && a.Memory.OnHost():
			host += a.Requested
		case a.Kind == kind:
			device += a.Requested
		}
	}
	return device, host
}

// TestDevices puts each device's part in its tracker, and the host's in the first.
func TestDevices(t *testing.T) {
	l := fake(t, 2)
	require.NoError(t, l.AddModel(1, "model"))
	require.NoError(t, l.AddContext(2, "context"))
	for i, want := range []struct{ device, host alloc.Bytes }{{200, 100}, {400, 0}} {
		device, host := live(l.trackers[i], weights)
		assert.Equal(t, want.device, device, "device %d", i)
		assert.Equal(t, want.host, host, "device %d", i)
	}
	cache, _ := live(l.trackers[1], kv)
	graph, _ := live(l.trackers[1], compute)
	assert.Equal(t, []alloc.Bytes{30, 7}, []alloc.Bytes{cache, graph})

	assert.Equal(t, "llama.cpp, models and contexts: 2", l.String())

	one := fake(t, 1)
	require.NoError(t, one.AddModel(1, "model"))
	device, host := live(one.trackers[0], weights)
	assert.Equal(t, []alloc.Bytes{600, 100}, []alloc.Bytes{device, host}, "devices without a tracker are the first one's")
}

// TestWithoutBreakdown takes what llama.cpp's C interface says, where the breakdown is missing or empty.
func TestWithoutBreakdown(t *testing.T) {
	l := fake(t, 1)
	l.functions.modelBreakdown = nil
	l.functions.contextBreakdown = func(uintptr) tree { return tree{} }
	require.NoError(t, l.AddModel(1, "model"))
	require.NoError(t, l.AddContext(2, "context"))
	model, _ := live(l.trackers[0], weights)
	context, _ := live(l.trackers[0], kv)
	assert.Equal(t, []alloc.Bytes{700, 50}, []alloc.Bytes{model, context})
}

// TestAllOrNothing takes a part back if another cannot be entered.
func TestAllOrNothing(t *testing.T) {
	l := fake(t, 2)
	require.NoError(t, l.trackers[1].Close())
	assert.ErrorIs(t, l.AddModel(1, "model"), alloc.ErrClosed)
	assert.Zero(t, l.trackers[0].Snapshot().Live.Count)
	assert.ErrorIs(t, l.Remove(1), alloc.ErrUnknownPtr)
	assert.ErrorIs(t, l.AddModel(0, "none"), alloc.ErrUnknownPtr)
}
