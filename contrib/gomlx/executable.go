package memtrack

import (
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// builder makes executables, whose results are entered in the ledger.
type builder struct {
	compute.Builder
	backend *backend
	main    *function
}

// Main implements compute.Builder.
func (x *builder) Main() compute.Function {
	if x.main == nil {
		x.main = &function{Function: x.Builder.Main(), builder: x}
	}
	return x.main
}

// NewFunction implements compute.Builder.
func (x *builder) NewFunction(name string) (compute.Function, error) {
	inner, err := x.Builder.NewFunction(name)
	if err != nil {
		return nil, err
	}
	return &function{Function: inner, builder: x}, nil
}

// Compile implements compute.Builder.
func (x *builder) Compile() (compute.Executable, error) {
	inner, err := x.Builder.Compile()
	if err != nil {
		return nil, x.backend.explain(err, 0, shapes.Shape{}, tracker.Unspecified)
	}
	e := &executable{Executable: inner, backend: x.backend, outputs: inner.Outputs()}
	if x.main != nil {
		e.inputs = x.main.parameters
	}
	e.results = make([]atomic.Pointer[variable], len(e.outputs))
	return e, nil
}

// function records which of a computation's parameters are variables: XLA's executables have other names
// for them. It unwraps the functions that it passes to the backend.
type function struct {
	compute.Function
	builder    *builder
	parent     *function
	parameters []*variable // nil for a parameter that is no variable
}

// unwrap returns the backend's function.
func unwrap(f compute.Function) compute.Function {
	if w, ours := f.(*function); ours {
		return w.Function
	}
	return f
}

// Parameter implements compute.Function.
func (f *function) Parameter(name string, shape shapes.Shape, sharding *compute.ShardingSpec) (compute.Value, error) {
	v, err := f.Function.Parameter(name, shape, sharding)
	if err == nil {
		f.parameters = append(f.parameters, f.builder.backend.variable(name))
	}
	return v, err
}

// Builder implements compute.Function.
func (f *function) Builder() compute.Builder { return f.builder }

// Parent implements compute.Function.
func (f *function) Parent() compute.Function {
	if f.parent == nil {
		return f.Function.Parent()
	}
	return f.parent
}

// Closure implements compute.Function.
func (f *function) Closure() (compute.Function, error) {
	inner, err := f.Function.Closure()
	if err != nil {
		return nil, err
	}
	return &function{Function: inner, builder: f.builder, parent: f}, nil
}

// Call implements compute.Function.
func (f *function) Call(called compute.Function, inputs ...compute.Value) ([]compute.Value, error) {
	return f.Function.Call(unwrap(called), inputs...)
}

// Sort implements compute.Function.
func (f *function) Sort(comparator compute.Function, axis int, stable bool, inputs ...compute.Value) ([]compute.Value, error) {
	return f.Function.Sort(unwrap(comparator), axis, stable, inputs...)
}

// While implements compute.Function.
func (f *function) While(condition, body compute.Function, state ...compute.Value) ([]compute.Value, error) {
	return f.Function.While(unwrap(condition), unwrap(body), state...)
}

// If implements compute.Function.
func (f *function) If(predicate compute.Value, yes, no compute.Function) ([]compute.Value, error) {
	return f.Function.If(predicate, unwrap(yes), unwrap(no))
}

// executable is a compiled computation. GoMLX passes a model's variables as inputs, which have names, and
// gets their new values as results, which do not. So the executable learns: a result that is passed as
// the input of a variable later was its new value, and is so in all later runs.
type executable struct {
	compute.Executable
	backend *backend
	inputs  []*variable // nil for an input that is no variable
	outputs []shapes.Shape
	results []atomic.Pointer[variable]
	ran     atomic.Bool
}

// learn remembers that a result is the new value of a variable, if the variable is an input too.
func (e *executable) learn(result int, v *variable) {
	if slices.Contains(e.inputs, v) {
		e.results[result].Store(v)
	}
}

// input returns the variable that an input is, if it is one. There are as many inputs again for each device.
func (e *executable) input(i int) *variable {
	if len(e.inputs) == 0 {
		return nil
	}
	return e.inputs[i%len(e.inputs)]
}

// Execute implements compute.Executable. If it fails, the inputs stay in the ledger until they are
// finalized or collected, also donated ones: how far the backend came is unknown.
func (e *executable) Execute(inputs []compute.Buffer, donate []bool, n compute.DeviceNum) ([]compute.Buffer, error) {
	inner := make([]compute.Buffer, len(inputs))
	for i, in := range inputs {
		inner[i] = in
		if w, ours := in.(*buffer); ours {
			inner[i] = w.Buffer
			if v := e.input(i); v != nil {
				w.entry.setVariable(v)
			}
		}
	}
	out, err := e.Executable.Execute(inner, donate, n)
	runtime.KeepAlive(inputs)
	if err != nil {
		return nil, e.backend.explain(err, n, shapes.Shape{}, tracker.Unspecified)
	}
	for i, given := range donate {
		if w, ours := inputs[i].(*buffer); ours && given {
			w.entry.unregister() // before the results are registered, which may have its memory
		}
	}
	for i := range out {
		out[i] = e.registerResult(out[i], i, len(out), n)
	}
	if !e.ran.Load() && !e.ran.Swap(true) {
		e.backend.fresh.Store(true)
	}
	return out, nil
}

// registerResult registers the i-th of all results. The results of the first device come first.
func (e *executable) registerResult(inner compute.Buffer, i, results int, n compute.DeviceNum) compute.Buffer {
	result := i % max(1, len(e.outputs))
	shape := e.outputs[result]
	if results > len(e.outputs) || shape.IsDynamic() { // a part of it, or not known before
		if actual, err := inner.Shape(); err == nil {
			shape = actual
		}
	}
	if len(e.backend.trackers) > 1 { // the computation may use devices other than the backend's first
		if actual, err := inner.DeviceNum(); err == nil {
			n = actual
		}
	}
	v := e.results[result].Load()
	if v == nil {
		w := e.backend.register(inner, n, shape, tracker.Activation, "")
		w.entry.from, w.entry.result = e, result
		return w
	}
	w := e.backend.register(inner, n, shape, v.kind, v.path)
	w.entry.from, w.entry.result = e, result
	w.entry.variable.Store(v)
	return w
}
