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

// kindOf tells what a variable is for by its path.
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

// is says which variable's value the buffer is. It was an input or a result until now.
func (e *entry) is(v *variable) {
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
				w.entry.is(b.variable(v.Path()))
			}
		}
	}
}
