package memtrack

import (
	"errors"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/metric"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// buffer is a backend's buffer that is registered in a ledger.
type buffer struct {
	compute.Buffer
	backend *backend
	entry   *entry
}

// entry is the registration of a buffer. It does not refer to the buffer, which Go's collector may free
// first.
type entry struct {
	tracker  *tracker.MemTracker
	address  alloc.Ptr // 0 if the tracker refused it
	variable atomic.Pointer[variable]
	from     *executable // which made it, if one did, as this result
	result   int

	mu           sync.Mutex
	unregistered bool
}

// unregister removes the buffer from the ledger, once. The result undoes that; it is nil if the buffer was
// not registered.
func (e *entry) unregister() (undo func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.address == 0 || e.unregistered {
		return nil
	}
	e.unregistered = true
	back, err := e.tracker.Unregister(e.address)
	if err != nil {
		return nil // the tracker is closed
	}
	return func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.unregistered = false
		return back()
	}
}

// register registers a new buffer of device n in the ledger.
func (b *backend) register(inner compute.Buffer, n compute.DeviceNum, shape shapes.Shape, kind tracker.Kind, label string) *buffer {
	w := &buffer{Buffer: inner, backend: b, entry: &entry{tracker: b.tracker(n)}}
	dims, dtype := ledgerShape(shape)
	bytes, err := dims.Bytes(dtype)
	if at := address(bytes); err == nil && w.entry.tracker.Register(at, alloc.DeviceMemory, dims, dtype, kind) == nil {
		w.entry.address = at
		if label != "" {
			_ = w.entry.tracker.SetLabel(at, label) // fails only if the tracker is closed meanwhile
		}
	}
	runtime.AddCleanup(w, func(e *entry) { e.unregister() }, w.entry) // the backend's own buffer goes with the collector too
	return w
}

// Backend implements compute.Buffer.
func (w *buffer) Backend() compute.Backend { return w.backend }

// Finalize implements compute.Buffer. A buffer that could not be freed stays in the ledger.
func (w *buffer) Finalize() error {
	undo := w.entry.unregister()
	err := w.Buffer.Finalize()
	if err != nil && undo != nil && !w.backend.IsFinalized() {
		return errors.Join(err, undo())
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
		return nil, w.backend.explain(err, n, shape, kind)
	}
	return w.backend.register(inner, n, shape, kind, label), nil
}

// variable is a variable of a model. There is one for each path.
type variable struct {
	path string
	kind tracker.Kind
}

// variable returns the variable with a parameter's name, which is the variable's path and begins with a slash. For the name of
// any other parameter it returns nil.
func (b *backend) variable(name string) *variable {
	if !strings.HasPrefix(name, model.ScopeSeparator) {
		return nil
	}
	v, known := b.variables.Load(name)
	if !known {
		v, _ = b.variables.LoadOrStore(name, &variable{name, kindOf(name)})
	}
	return v.(*variable)
}

// kindOf returns the kind of a variable by its path.
func kindOf(variable string) tracker.Kind {
	scope, _, _ := strings.Cut(strings.TrimPrefix(variable, model.ScopeSeparator), model.ScopeSeparator)
	name := path.Base(variable)
	switch {
	case scope == optimizer.Scope, scope == optimizer.AdamDefaultScope, strings.HasSuffix(name, "_moment"):
		return tracker.OptimizerState
	case scope == train.AccumulatedGradientsScope:
		return tracker.Gradient
	case scope == metric.Scope, model.ScopeSeparator+scope == train.TrainerAbsoluteScope, name == optimizer.GlobalStepVariableName, strings.HasPrefix(name, "#"):
		return tracker.Unspecified // the state of metrics, counters and random numbers
	}
	return tracker.Parameter
}

// setVariable records that the buffer is the value of a variable. It was an input or a result until now.
func (e *entry) setVariable(v *variable) {
	if e.variable.Load() == v || e.variable.Swap(v) == v {
		return
	}
	if e.from != nil {
		e.from.learn(e.result, v)
	}
	// These fail only for a buffer that is freed meanwhile.
	_ = e.tracker.SetLabel(e.address, v.path)
	_ = e.tracker.SetKind(e.address, v.kind)
}

// nameAll names the buffers of a store's variables, if executables have run for the first time since the last call.
func (b *backend) nameAll(store *model.Store) {
	if !b.fresh.Swap(false) {
		return
	}
	for v := range store.IterVariables() {
		if !v.HasValue() {
			continue
		}
		value, err := v.Value()
		if err != nil {
			continue
		}
		n, err := value.Device()
		if err != nil || !value.IsOnDevice(n) {
			continue
		}
		if held, err := value.Buffer(b, n); err == nil {
			if w, ours := held.(*buffer); ours {
				w.entry.setVariable(b.variable(v.Path()))
			}
		}
	}
}
