package nn

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Module is a layer of your own: named parts, parameters, and a function that records what forward does with them. It
// describes what Sequential, Residual and Concat do not. Parts are named once, with As, and called by name.
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
	Name   string // of the rows; empty for "Module"
	Parts  Sequential
	Params []Param // of the layer itself, besides those of its parts
	// Run records the forward pass and returns its output. It ends with Failf if x does not fit. estimate.Model calls
	// it at each place where the Module stands, from the goroutine that called Model.
	Run func(f *Flow, x Tensor) Tensor
}

// Param is a parameter or a buffer of a Module.
type Param struct {
	Name  string      // within its layer, such as "weight"
	Shape alloc.Shape // as PyTorch has it
	DType alloc.DType // 0 means the model's type of weights

	// Buffer marks memory that belongs to the model and is not trained, such as running means.
	Buffer bool
	// Tied is the path of the parameter that this one is the same as, such as "model.embed_tokens.weight". Both must have
	// the same shape; the memory is counted where the parameter is first declared. A path that begins with a dot is
	// relative to the layer that holds this one, and each further dot goes one layer up: the Tied of "lm_head" can be
	// ".model.embed_tokens.weight", so that the whole model may be part of another.
	Tied string
	// Split marks a parameter that tensor parallelism divides among devices.
	Split bool
}

// Tensor is an activation that layers pass on: a shape and an element type, without values. A Flow makes it, and it is valid
// until the call of estimate.Model returns that made it. The zero Tensor is none; an operation that reads one fails.
type Tensor struct {
	Shape alloc.Shape
	DType alloc.DType

	tape.Ref // which tensor of which model it is; for package estimate alone
}

// Dim returns the length of dimension i. A negative i counts from the last dimension; a dimension
// that does not exist, as after an error, has length 1.
func (x Tensor) Dim(i int) int { return tape.Tensor(x).Dim(i) }

// NeedsGrad reports whether the backward pass computes a gradient of x. Many operations keep more if it does.
func (x Tensor) NeedsGrad() bool { return tape.Tensor(x).NeedsGrad() }

// Op is one operation as autograd sees it. The memory of what it keeps lasts until its backward pass.
type Op struct {
	In    []Tensor    // what it reads, at least one tensor
	Shape alloc.Shape // of its output
	DType alloc.DType // of its output; 0 means that of In[0]

	// Params says that the operation reads parameters of the Module. Its output then needs a gradient, whether or not an
	// input does.
	Params bool

	Keep       []Tensor // tensors retained for the backward pass
	KeepOutput bool     // the output is retained too
	KeepOwn    []Own    // indices, masks and statistics retained

	InPlace      bool // the output overwrites In[0]
	View         bool // the output is In[0] in another shape, in the same memory
	PassGrad     bool // the output's gradient serves as the gradient of each input, as in an addition
	TrainingOnly bool // in inference it does nothing, like dropout
	Gather       bool // the output is whole, although tensor parallelism splits an input
	Split        bool // tensor parallelism splits the output

	FLOPs     int64       // a multiplication with an addition counts as two
	Workspace alloc.Bytes // memory needed while the operation runs
	// BackwardWorkspace is the memory needed while the backward pass of the operation runs, besides
	// Workspace and the gradients of its output and inputs.
	BackwardWorkspace alloc.Bytes
}

// Own is a tensor that an operation makes for itself and keeps for its backward pass: an entry of Op.KeepOwn.
type Own struct {
	Shape alloc.Shape
	DType alloc.DType // 0 means that of the operation's output
}

// Flow records what a Module does with its input, one operation at a time. Nothing is computed but shapes and sizes. Its
// methods are named after PyTorch's operations, and keep what those keep for the backward pass; Op records any other. A
// method that is asked for what cannot be, such as the product of tensors that do not fit, ends the forward pass: Model
// then returns a *estimate.LayerError that names the Module. A Flow is valid during one call of Run, in its goroutine.
type Flow tape.Handle

// tape returns the Flow that records.
func (f *Flow) tape() *tape.Flow { return (*tape.Handle)(f).Flow() }

// Call runs the part with this name and returns its output; "blocks.3" is part 3 of the Sequential or Repeat named blocks.
// The part reads the tensors of beside with Beside; if none are given it reads those that the Module was given.
func (f *Flow) Call(name string, x Tensor, beside ...Tensor) Tensor {
	return Tensor(f.tape().Call(name, tape.Tensor(x), inner(beside)...))
}

// Input returns the i-th input of the model, the first being the input of its first layer.
func (f *Flow) Input(i int) Tensor { return Tensor(f.tape().Input(i)) }

// Beside returns the i-th tensor that the Module was given beside its input, such as an encoder's output for cross-attention.
func (f *Flow) Beside(i int) Tensor { return Tensor(f.tape().Beside(i)) }

// Const returns a tensor that depends on no input and needs no gradient, such as a mask or a table of positions. An element
// type of 0 means that of the model's activations.
func (f *Flow) Const(d alloc.DType, dims ...int) Tensor { return Tensor(f.tape().Const(d, dims...)) }

// Failf ends the forward pass with an error that names the Module, like t.Fatalf in a test: it does not return.
func (f *Flow) Failf(format string, args ...any) { f.tape().Failf(format, args...) }

// Op records an operation and returns its output, whose shape is Op.Shape.
func (f *Flow) Op(o Op) Tensor {
	own := make([]tape.Own, len(o.KeepOwn))
	for i, w := range o.KeepOwn {
		own[i] = tape.Own(w)
	}
	return Tensor(f.tape().Op(tape.Op{
		In: inner(o.In), Shape: o.Shape, DType: o.DType, Params: o.Params,
		Keep: inner(o.Keep), KeepOutput: o.KeepOutput, KeepOwn: own,
		InPlace: o.InPlace, View: o.View, PassGrad: o.PassGrad, TrainingOnly: o.TrainingOnly, Gather: o.Gather, Split: o.Split,
		FLOPs: o.FLOPs, Workspace: o.Workspace, BackwardWorkspace: o.BackwardWorkspace,
	}))
}

// Add records x + y, with y broadcast to the shape of x. It keeps nothing.
func (f *Flow) Add(x, y Tensor) Tensor { return Tensor(f.tape().Add(tape.Tensor(x), tape.Tensor(y))) }

// AddTo records x += y, in the memory of x.
func (f *Flow) AddTo(x, y Tensor) Tensor {
	return Tensor(f.tape().AddTo(tape.Tensor(x), tape.Tensor(y)))
}

// Mul records x * y, with y broadcast to the shape of x. It keeps x if y needs a gradient, and y if x does.
func (f *Flow) Mul(x, y Tensor) Tensor { return Tensor(f.tape().Mul(tape.Tensor(x), tape.Tensor(y))) }

// Scale records x times a number, or x plus a number, in new memory. It keeps nothing.
func (f *Flow) Scale(x Tensor) Tensor { return Tensor(f.tape().Scale(tape.Tensor(x))) }

// Copy records a copy of x in new memory, as contiguous makes, or reshape of permuted dimensions.
func (f *Flow) Copy(x Tensor) Tensor { return Tensor(f.tape().Copy(tape.Tensor(x))) }

// Cast returns x in an element type, as Tensor.to does: x itself if it has that type, and a copy if not.
func (f *Flow) Cast(x Tensor, d alloc.DType) Tensor { return Tensor(f.tape().In(d, tape.Tensor(x))) }

// MatMul records a product of two tensors, as torch.matmul and torch.bmm, and keeps both. The output has the given shape;
// sum is the length of the dimension that is summed over.
func (f *Flow) MatMul(x, y Tensor, sum int, shape ...int) Tensor {
	return Tensor(f.tape().MatMul(tape.Tensor(x), tape.Tensor(y), sum, shape...))
}

// View returns x in another shape, in the same memory. One of the dimensions may be -1, and is then computed.
func (f *Flow) View(x Tensor, dims ...int) Tensor {
	return Tensor(f.tape().View(tape.Tensor(x), dims...))
}

// Permute returns x with its dimensions in another order, in the same memory. Copy it for an
// operation that needs the elements one after another.
func (f *Flow) Permute(x Tensor, dims ...int) Tensor {
	return Tensor(f.tape().Permute(tape.Tensor(x), dims...))
}

// Split divides x along a dimension into parts of these lengths, in the same memory, as torch.split
// and torch.chunk do. The backward pass joins their gradients in a new tensor.
func (f *Flow) Split(x Tensor, dim int, lengths ...int) []Tensor {
	parts := f.tape().Split(tape.Tensor(x), dim, lengths...)
	all := make([]Tensor, len(parts))
	for i, p := range parts {
		all[i] = Tensor(p)
	}
	return all
}

// Cat joins tensors along a dimension, in new memory; their other lengths must be equal.
func (f *Flow) Cat(dim int, xs ...Tensor) Tensor { return Tensor(f.tape().Cat(dim, inner(xs)...)) }

// Resize records x with other lengths of the dimensions after the channels, in new memory, as
// torch.nn.functional.interpolate does. It keeps nothing.
func (f *Flow) Resize(x Tensor, sizes ...int) Tensor {
	return Tensor(f.tape().Resize(tape.Tensor(x), sizes...))
}

// Hold keeps tensors alive up to the latest operation, as a variable of the layer's code does.
func (f *Flow) Hold(xs ...Tensor) { f.tape().Hold(inner(xs)...) }

// inner returns the tensors as the tape has them.
func inner(xs []Tensor) []tape.Tensor {
	all := make([]tape.Tensor, len(xs))
	for i, x := range xs {
		all[i] = tape.Tensor(x)
	}
	return all
}
