package memtrack

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// buffer is a backend's buffer that stands in a ledger.
type buffer struct {
	compute.Buffer
	of    *backend
	entry *entry
}

// entry is a buffer's place in the ledger. It knows no buffer: it outlives one that Go's collector takes.
type entry struct {
	tracker  *tracker.MemTracker
	address  alloc.Ptr // 0 if the tracker refused it
	variable atomic.Pointer[variable]
	from     *executable // which made it, if one did, as this result
	result   int

	mu   sync.Mutex
	gone bool
}

// leave takes the buffer out of the ledger, once. The result puts it back.
func (e *entry) leave() (putBack func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.address == 0 || e.gone {
		return nil
	}
	e.gone = true
	back, err := e.tracker.Unregister(e.address)
	if err != nil {
		return nil // the tracker is closed
	}
	return func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.gone = false
		return back()
	}
}

// enter puts a new buffer of device n in the ledger.
func (b *backend) enter(inner compute.Buffer, n compute.DeviceNum, shape shapes.Shape, kind tracker.Kind, label string) *buffer {
	w := &buffer{Buffer: inner, of: b, entry: &entry{tracker: b.tracker(n)}}
	dims, dtype := inLedger(shape)
	bytes, err := dims.Bytes(dtype)
	if at := address(bytes); err == nil && w.entry.tracker.Register(at, alloc.DeviceMemory, dims, dtype, kind) == nil {
		w.entry.address = at
		if label != "" {
			_ = w.entry.tracker.SetLabel(at, label) // fails only if the tracker is closed meanwhile
		}
	}
	runtime.AddCleanup(w, func(e *entry) { e.leave() }, w.entry) // the backend's own buffer goes with the collector too
	return w
}

// Backend implements compute.Buffer.
func (w *buffer) Backend() compute.Backend { return w.of }

// Finalize implements compute.Buffer. A buffer that could not be freed stays in the ledger.
func (w *buffer) Finalize() error {
	putBack := w.entry.leave()
	err := w.Buffer.Finalize()
	if err != nil && putBack != nil && !w.of.IsFinalized() {
		return errors.Join(err, putBack())
	}
	return err
}

// CopyToDevice implements compute.Buffer.
func (w *buffer) CopyToDevice(n compute.DeviceNum) (compute.Buffer, error) {
	shape, err := w.Buffer.Shape()
	if err != nil {
		return nil, err
	}
	kind, label := tracker.Unspecified, "copy"
	if v := w.entry.variable.Load(); v != nil {
		kind, label = v.kind, "copy of "+v.path
	}
	inner, err := w.Buffer.CopyToDevice(n)
	if err != nil {
		return nil, w.of.explain(err, n, shape, kind)
	}
	return w.of.enter(inner, n, shape, kind, label), nil
}
