package tracker_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// blocked is a device that stays in a call as long as a test wants.
type blocked struct {
	cachetest.Device
	armed          atomic.Bool
	entered, leave chan bool
}

func (d *blocked) enter() {
	if d.armed.CompareAndSwap(true, false) {
		d.entered <- true
		<-d.leave
	}
}

func (d *blocked) Alloc(n alloc.Bytes) (alloc.Ptr, error) { d.enter(); return d.Device.Alloc(n) }
func (d *blocked) Free(p alloc.Ptr) error                 { d.enter(); return d.Device.Free(p) }

// TestWhatTheCacheServesWaitsForNoDriver: while the driver is in a call, allocations return that the cache can serve, whatever
// is new about them, and so does all that looks. No clock tells: a call that waits would not return.
func TestWhatTheCacheServesWaitsForNoDriver(t *testing.T) {
	b := &blocked{Device: device(t, sim.Config{Memory: alloc.GiB}), entered: make(chan bool), leave: make(chan bool)}
	tr, _ := open(t, tracker.Config{Device: b})
	allocate := func(shape alloc.Shape, kind tracker.Kind) *tracker.Buffer {
		buf, err := tr.Alloc(shape, alloc.Uint8, kind)
		require.NoError(t, err)
		return buf
	}
	for _, work := range []func(){
		func() {
			buf, err := tr.AllocBytes(200*alloc.MiB, tracker.Input)
			if assert.NoError(t, err) {
				assert.NoError(t, buf.Free())
			}
		},
		func() {
			_, err := tr.ClearCache()
			assert.NoError(t, err)
		},
	} {
		require.NoError(t, allocate(alloc.Shape{40 << 20}, tracker.Input).Free()) // which ClearCache gives back
		keep := allocate(alloc.Shape{1}, tracker.Input)
		done := make(chan bool)
		b.armed.Store(true)
		go func() {
			defer close(done)
			work()
		}()
		<-b.entered
		for i := range 100 {
			buf := allocate(alloc.Shape{1 + i, 2}, tracker.Activation) // a new shape
			buf.SetLabel("x")
			require.NoError(t, buf.SetKind(tracker.Gradient))
			require.NoError(t, buf.Free())
		}
		require.NoError(t, allocate(alloc.Shape{1, 2}, "a new kind").Free())
		var deep func(n int)
		deep = func(n int) { // new stacks
			require.NoError(t, allocate(alloc.Shape{1, 2}, tracker.Activation).Free())
			if n > 0 {
				deep(n - 1)
			}
		}
		deep(20)
		section := tr.Section("new")
		require.NoError(t, allocate(alloc.Shape{1, 2}, tracker.Activation).Free())
		section.End()
		arena := keep.Ptr() + 1
		require.NoError(t, tr.Register(arena, alloc.DeviceMemory, alloc.Shape{1}, alloc.Uint8, tracker.Input))
		_, err := tr.Unregister(arena)
		require.NoError(t, err)
		tr.Track()
		tr.LightSnapshot()
		close(b.leave)
		<-done
		b.leave = make(chan bool)
		require.NoError(t, keep.Free())
	}
}
