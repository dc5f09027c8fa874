package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Module is a layer made of named parts and a function that runs them, for models that Sequential,
// Residual and Concat cannot describe. Name each part once, with As, and call it by that name.
//
//	nn.Module{
//		Name:  "Attention",
//		Parts: nn.Sequential{nn.As("qkv", ...), nn.As("proj", ...)},
//		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
//			qkv := f.Call("qkv", x)
//			...
//			return f.Call("proj", y)
//		},
//	}
type Module struct {
	Name  string // what its rows show as the layer's kind; empty means "Module"
	Parts Sequential
	// Params are those of the layer itself, besides those of its parts.
	Params []Param
	Run    func(f *Flow, x Tensor) Tensor
}

// Kind returns what the layer's rows show as its kind.
func (m Module) Kind() string { return setting.Or(m.Name, "Module") }

func (m Module) Declare(d *Declaration) {
	if m.Run == nil {
		d.Errorf("Run is nil: want a function")
		return
	}
	for _, p := range m.Params {
		d.Add(p)
	}
	m.Parts.Declare(d)
}

func (m Module) Forward(t *Tape, x Tensor) (Tensor, error) {
	f := &Flow{T: t, Parts: m.Parts}
	y := m.Run(f, x)
	return y, f.Fault
}

// Flow records a forward pass and keeps the first error, so that a Module's Run need not check each
// operation. After an error nothing is recorded, and operations return tensors that have a shape
// but no memory. A Flow is valid for one call of Run.
type Flow struct {
	T     *Tape
	Parts Sequential
	Fault error
}

// Err returns the first error, or nil. The Module returns it, whatever Run returns.
func (f *Flow) Err() error { return f.Fault }

// Errorf sets the Flow's error, with the layer's path before the text. A Flow that has an error
// already keeps that one.
func (f *Flow) Errorf(format string, args ...any) {
	if f.Fault == nil {
		f.Fault = f.T.Errorf(format, args...)
	}
}

// Tape returns the tape that the Flow records on.
func (f *Flow) Tape() *Tape { return f.T }

// keep returns y, or after an error a tensor that has only a shape.
func (f *Flow) keep(y Tensor, err error, like alloc.Shape) Tensor {
	if f.Fault == nil {
		f.Fault = err
	}
	if f.Fault != nil {
		return Tensor{Shape: slices.Clone(like)}
	}
	return y
}

// Do calls record unless there was an error before. After an error it returns a tensor with the
// shape like.
func (f *Flow) Do(like alloc.Shape, record func() (Tensor, error)) Tensor {
	if f.Fault != nil {
		return f.keep(Tensor{}, nil, like)
	}
	y, err := record()
	return f.keep(y, err, like)
}

// Hold keeps tensors alive up to here, as if a variable of the layer's code held them.
func (f *Flow) Hold(xs ...Tensor) {
	for _, x := range xs {
		if f.Fault == nil {
			f.T.Hold(x)
		}
	}
}

// Call runs the part with this name; "blocks.3" is part 3 of the Sequential or Repeat named blocks.
// The part reads the tensors of beside with Beside; if none are given it reads those that the
// Module was given.
func (f *Flow) Call(name string, x Tensor, beside ...Tensor) Tensor {
	if len(beside) == 0 {
		beside = f.T.beside
	}
	l := partOf(f.Parts, name)
	if l == nil {
		f.Errorf("it calls %q, which is none of its Parts: name them with As", name)
	}
	return f.Do(x.Shape, func() (Tensor, error) { return f.T.Call(name, l, x, beside...) })
}

// Beside returns the i-th tensor that the layer was given beside its input, such as the encoder's
// output for cross-attention.
func (f *Flow) Beside(i int) Tensor {
	return f.Do(alloc.Shape{}, func() (Tensor, error) { return f.T.Beside(i) })
}

// AllBeside returns all tensors that the layer was given beside its input.
func (f *Flow) AllBeside() []Tensor { return f.T.beside }

// Const makes a tensor that depends on no input, such as a mask: see Tape.Const.
func (f *Flow) Const(d alloc.DType, dims ...int) Tensor {
	return f.Do(dims, func() (Tensor, error) { return f.T.Const(d, dims...) })
}

// Input returns the i-th input of the model: see Tape.Input.
func (f *Flow) Input(i int) Tensor {
	return f.Do(alloc.Shape{}, func() (Tensor, error) { return f.T.Input(i) })
}

// Op records an operation.
func (f *Flow) Op(o Op) Tensor {
	if f.Fault != nil {
		return f.keep(Tensor{}, nil, o.Shape)
	}
	y, err := f.T.Op(o)
	return f.keep(y, err, o.Shape)
}

// Apply runs a layer that has no parameters, such as SiLU. It gets no row of its own in the report.
func (f *Flow) Apply(l Layer, x Tensor) Tensor {
	return f.Do(x.Shape, func() (Tensor, error) {
		if IsNil(l) {
			return Tensor{}, f.T.Errorf("it applies no layer")
		}
		return l.Forward(f.T, x)
	})
}

// Add records x + y, with y broadcast to x.
func (f *Flow) Add(x, y Tensor) Tensor {
	f.fits(x, y)
	return f.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), Gather: !x.split || !y.split})
}

// AddTo records x += y, in the memory of x.
func (f *Flow) AddTo(x, y Tensor) Tensor {
	f.fits(x, y)
	return f.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), InPlace: true})
}

// Mul records x * y, with y broadcast to x. It keeps what the gradients need.
func (f *Flow) Mul(x, y Tensor) Tensor {
	f.fits(x, y)
	return f.Do(x.Shape, func() (Tensor, error) { return Mul(f.T, x, y) })
}

// Scale records x times a number, or x plus a number, in new memory.
func (f *Flow) Scale(x Tensor) Tensor { return f.Op(Op{In: []Tensor{x}, Shape: x.Shape}) }

// MatMul records the product of two tensors and keeps both for the backward pass. The output has
// the given shape; sum is the length of the dimension that is summed over.
func (f *Flow) MatMul(x, y Tensor, sum int, shape ...int) Tensor {
	return f.Op(Op{In: []Tensor{x, y}, Shape: shape, Keep: []Tensor{x, y}, FLOPs: setting.Flops(shape, sum, 2)})
}

// View returns x in another shape, in the same memory. One of the dimensions may be -1.
func (f *Flow) View(x Tensor, dims ...int) Tensor {
	return f.Do(dims, func() (Tensor, error) { return Seen(f.T, x, dims) })
}

// Permute returns x with its dimensions in another order, in the same memory. Copy it for an
// operation that needs the elements one after another.
func (f *Flow) Permute(x Tensor, dims ...int) Tensor {
	return f.Do(dims, func() (Tensor, error) { return Permute(dims).Forward(f.T, x) })
}

// Copy records a copy of x in new memory, as contiguous() makes, or reshape of permuted dimensions.
func (f *Flow) Copy(x Tensor) Tensor { return f.Scale(x) }

// Resize records x with other lengths of the dimensions after the channels, in new memory, as
// torch.nn.functional.interpolate does. It keeps nothing.
func (f *Flow) Resize(x Tensor, sizes ...int) Tensor {
	if f.Fault == nil && (len(sizes) == 0 || len(x.Shape) != 2+len(sizes)) {
		f.Errorf("resizes %v to %v: want a size for each dimension after the channels", x.Shape, sizes)
	}
	shape := slices.Clone(x.Shape)
	copy(shape[min(2, len(shape)):], sizes)
	return f.Op(Op{In: []Tensor{x}, Shape: shape})
}

// Cat joins tensors along a dimension.
func (f *Flow) Cat(dim int, xs ...Tensor) Tensor {
	var like alloc.Shape
	if len(xs) > 0 {
		like = xs[0].Shape
	}
	return f.Do(like, func() (Tensor, error) { return Cat(f.T, dim, xs...) })
}

// Part returns the first n elements of x along a dimension, in the same memory.
func (f *Flow) Part(x Tensor, dim, n int) Tensor { return f.Split(x, dim, n)[0] }

// Split divides x along a dimension into parts of these lengths, in the same memory, as torch.split
// and torch.chunk do. The backward pass joins their gradients in a new tensor.
func (f *Flow) Split(x Tensor, dim int, lengths ...int) []Tensor {
	shapes, parts := make([]alloc.Shape, len(lengths)), make([]Tensor, len(lengths))
	sum, ok := 0, len(lengths) > 0
	for i, n := range lengths {
		shapes[i] = slices.Clone(x.Shape)
		if ok = ok && dim >= 0 && dim < len(x.Shape) && n > 0 && n <= x.Shape[dim]-sum; ok {
			shapes[i][dim] = n
			sum += n
		}
		parts[i] = Tensor{Shape: shapes[i]}
	}
	if !ok {
		f.Errorf("parts of %v along dimension %d of %v: it does not have those", lengths, dim, x.Shape)
	}
	if f.Fault == nil {
		var views []Tensor
		if views, f.Fault = f.T.Views(x, shapes...); f.Fault == nil {
			return views
		}
	}
	return parts
}

// fits sets an error if y cannot be broadcast to x.
func (f *Flow) fits(x, y Tensor) {
	if f.Fault != nil {
		return
	}
	off := len(x.Shape) - len(y.Shape)
	ok := off >= 0
	for i := 0; ok && i < len(y.Shape); i++ {
		ok = y.Shape[i] == 1 || y.Shape[i] == x.Shape[off+i]
	}
	if !ok {
		f.Errorf("%v does not broadcast to %v", y.Shape, x.Shape)
	}
}
