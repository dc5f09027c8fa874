package memtrack

import (
	"path"
	"strings"

	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/metric"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

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
