package trackertest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

const (
	goroutines = 8
	operations = 300
)

// Concurrent runs every operation from many goroutines at once. What they
// count one by one must be what the tracker counts.
func Concurrent(t *testing.T, open func(t *testing.T) Rig) {
	rig := open(t)
	tr := newTracker(t, rig, false, 1000)
	workers := make([]worker, goroutines)
	var wg sync.WaitGroup
	for i := range workers {
		workers[i] = worker{t: t, tr: tr, device: rig.Device, rand: rand.New(rand.NewPCG(1, uint64(i)))}
		wg.Go(workers[i].work)
	}
	wg.Wait()

	var live, total tracker.Tally
	sum := tr.Track().Delta
	for _, w := range workers {
		live, total, sum = live.Add(w.live), total.Add(w.total), sum.Add(w.marks)
	}
	s := tr.Snapshot()
	RequireExact(t, s)
	require.Equal(t, live, s.Live)
	require.Equal(t, total, s.Total)
	require.Equal(t, s.Sub(nil), sum, "the deltas of all marks give the live table")

	for _, w := range workers {
		for _, buf := range w.buffers {
			require.NoError(t, buf.Free())
		}
		for _, p := range w.registered {
			require.NoError(t, tr.Release(p, func() error { return rig.Device.Free(p) }))
		}
	}
	_, err := tr.ClearCache()
	require.NoError(t, err)
	require.Zero(t, tr.Snapshot().Live)
	require.Zero(t, tr.Snapshot().Reserved)
	require.NoError(t, tr.Close())
}

// worker is one goroutine and what it counted.
type worker struct {
	t      *testing.T
	tr     *tracker.MemTracker
	device alloc.Device
	rand   *rand.Rand

	buffers     []*tracker.Buffer
	registered  []alloc.Ptr
	live, total tracker.Tally
	marks       tracker.Delta
}

func (w *worker) work() {
	for range operations {
		switch n := w.rand.IntN(100); {
		case n < 45:
			w.alloc()
		case n < 75:
			w.free()
		case n < 85:
			w.register()
		case n < 93:
			w.unregister()
		case n < 97:
			w.marks = w.marks.Add(w.tr.Track().Delta)
		case n < 98:
			w.tr.Snapshot()
			w.tr.History()
		default:
			_, err := w.tr.ClearCache()
			assert.NoError(w.t, err)
		}
	}
}

func (w *worker) count(sign int64, bytes alloc.Bytes) {
	w.live = w.live.Add(tracker.Tally{Count: sign, Bytes: alloc.Bytes(sign) * bytes})
	if sign > 0 {
		w.total = w.total.Add(tracker.Tally{Count: 1, Bytes: bytes})
	}
}

func (w *worker) alloc() {
	shape := alloc.Shape{1 + w.rand.IntN(20), 1 << w.rand.IntN(16)}
	buf, err := w.tr.Alloc(shape, alloc.Float32, tracker.Kind(w.rand.IntN(7)))
	if !assert.NoError(w.t, err) {
		return
	}
	w.buffers = append(w.buffers, buf)
	w.count(1, buf.Bytes())
}

func (w *worker) free() {
	if len(w.buffers) == 0 {
		return
	}
	i := w.rand.IntN(len(w.buffers))
	buf := w.buffers[i]
	w.buffers[i] = w.buffers[len(w.buffers)-1]
	w.buffers = w.buffers[:len(w.buffers)-1]
	assert.NoError(w.t, buf.Free())
	w.count(-1, buf.Bytes())
}

const registeredBytes = 4096

func (w *worker) register() {
	p, err := w.device.Alloc(registeredBytes)
	if !assert.NoError(w.t, err) {
		return
	}
	assert.NoError(w.t, w.tr.Register(p, alloc.Shape{registeredBytes}, alloc.Uint8, tracker.Unspecified))
	w.registered = append(w.registered, p)
	w.count(1, registeredBytes)
}

func (w *worker) unregister() {
	if len(w.registered) == 0 {
		return
	}
	p := w.registered[len(w.registered)-1]
	w.registered = w.registered[:len(w.registered)-1]
	assert.NoError(w.t, w.tr.Release(p, func() error { return w.device.Free(p) }))
	w.count(-1, registeredBytes)
}
