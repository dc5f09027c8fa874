package memtrack

import (
	"sync/atomic"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// builder makes executables, whose results are entered in the ledger.
type builder struct {
	compute.Builder
	of   *backend
	main *function
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
		return nil, x.of.explain(err, 0, shapes.Shape{}, tracker.Unspecified)
	}
	e := &executable{Executable: inner, of: x.of, outputs: inner.Outputs()}
	if x.main != nil {
		e.inputs = x.main.parameters
	}
	e.results = make([]atomic.Pointer[variable], len(e.outputs))
	return e, nil
}

// function remembers which of a computation's parameters are variables: XLA's executables have other names for
// them. The backend's functions know only their own, so it takes others of its kind apart.
type function struct {
	compute.Function
	builder    *builder
	parent     *function
	parameters []*variable // nil for a parameter that is no variable
}

// bare returns the backend's own function.
func bare(f compute.Function) compute.Function {
	if w, ours := f.(*function); ours {
		return w.Function
	}
	return f
}

// Parameter implements compute.Function.
func (f *function) Parameter(name string, shape shapes.Shape, sharding *compute.ShardingSpec) (compute.Value, error) {
	v, err := f.Function.Parameter(name, shape, sharding)
	if err == nil {
		f.parameters = append(f.parameters, f.builder.of.variable(name))
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
	return f.Function.Call(bare(called), inputs...)
}

// Sort implements compute.Function.
func (f *function) Sort(comparator compute.Function, axis int, stable bool, inputs ...compute.Value) ([]compute.Value, error) {
	return f.Function.Sort(bare(comparator), axis, stable, inputs...)
}

// While implements compute.Function.
func (f *function) While(condition, body compute.Function, state ...compute.Value) ([]compute.Value, error) {
	return f.Function.While(bare(condition), bare(body), state...)
}

// If implements compute.Function.
func (f *function) If(predicate compute.Value, yes, no compute.Function) ([]compute.Value, error) {
	return f.Function.If(predicate, bare(yes), bare(no))
}
