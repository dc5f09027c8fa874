// Package nn has the layers that package estimate computes with. They are named after
// PyTorch's modules and have their defaults; the zero value of a setting is PyTorch's default.
//
//	layers := []nn.Layer{
//		nn.Conv2d{In: 3, Out: 64, Kernel: 3, Padding: 1},
//		nn.ReLU{InPlace: true},
//		nn.Flatten{},
//		nn.Linear{In: 64 * 32 * 32, Out: 10},
//	}
//
// Layers are plain values: settings and nothing else. They compute nothing and hold no memory; package
// estimate knows what each of them declares and keeps. Sequential, Repeat, Residual and Concat put
// layers together, As names them, and Share lets one stand at several places. A Module is
// a layer of named parts and a function, for what has two inputs or skips. Custom makes a layer
// of a type of your own. Package zoo has well-known models, and package checkpoint reads model files.
//
// Layers may be used by several goroutines at once.
package nn

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"

// Layer is a part of a model, as torch.nn.Module is in PyTorch. One layer may stand at several places
// of a model, and then has parameters of its own at each of them, unless Share says otherwise.
// Only this package has types that are layers; Custom makes one of a type of your own.
type Layer interface{ isLayer() }

// Sequential calls one layer after another. Each layer is named by its index unless As names it,
// and may read the tensors that the Sequential was given beside its input; see Flow.
type Sequential []Layer

// As gives a layer its name in the layer that holds it, where its index would stand otherwise.
func As(name string, l Layer) Layer { return named{name, l} }

// named is a layer that As made.
type named struct {
	name string
	Layer
}

// Named returns the name and the layer that As was given.
func (n named) Named() (string, Layer) { return n.name, n.Layer }

// Residual is After(Body(x) + Shortcut(x)). A Body that is a Sequential takes no name of its own: its
// parts are parts of the Residual, as the layers of a ResNet's block are.
type Residual struct {
	Body     Layer
	Shortcut Layer // nil passes x on as it is
	After    Layer // called with the sum; may be nil
}

// Concat calls each branch with the same input and joins their outputs along a dimension.
type Concat struct {
	Branches []Layer
	Dim      int // 0 means 1, the channels
}

// Repeat makes a layer that calls n copies of l one after another, each with parameters of its own,
// named "0", "1" and so on.
func Repeat(n int, l Layer) Layer { return repeated{n, l} }

// repeated is a layer that Repeat made.
type repeated struct {
	n int
	Layer
}

// Repeated returns the number and the layer that Repeat was given.
func (r repeated) Repeated() (int, Layer) { return r.n, r.Layer }

// Share makes a layer that may stand at several places of a model and has one set of parameters, which
// is counted once. Each call makes another such layer.
func Share(l Layer) Layer { return &shared{l} }

// shared is a layer that Share made. Two are the same layer if they are the same pointer.
type shared struct{ Layer }

// Shared returns the layer that Share was given.
func (s *shared) Shared() Layer { return s.Layer }

// Recompute makes a layer keep only its input and compute the rest again in the backward pass, as
// torch.utils.checkpoint does. The option estimate.Checkpointed does the same by path.
func Recompute(l Layer) Layer { return recomputed{l} }

// recomputed is a layer that Recompute made.
type recomputed struct{ Layer }

// Recomputed returns the layer that Recompute was given.
func (r recomputed) Recomputed() Layer { return r.Layer }

// Inline makes the parts of a layer parts of the Sequential, Residual, Concat or Module that holds it:
// the layer itself has neither a name nor a row. So are the sums of a transformer's block, whose
// norms and attention are parts of the block:
//
//	nn.Sequential{
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm1", ...), nn.As("attn", ...)}}),
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm2", ...), nn.As("mlp", ...)}}),
//	}
func Inline(l Layer) Layer { return inline{l} }

// inline is a layer that Inline made.
type inline struct{ Layer }

// Inlined returns the layer that Inline was given.
func (in inline) Inlined() Layer { return in.Layer }

// Identity returns its input.
type Identity struct{}

// Module is a layer of named parts and a function that runs them, for models that Sequential, Residual
// and Concat do not describe. Parts are named once, with As, and called by name.
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
	Name  string // of the rows; empty for "Module"
	Parts Sequential
	Run   func(f *Flow, x Tensor) Tensor
}

// Flow records the forward pass of a Module: Call runs a part, Input and Beside give further
// tensors, Add, Mul, Scale, MatMul, View, Permute, Split, Cat, Copy and Resize are PyTorch's
// operations of these names, and Op records any other. It keeps the first error, which Model
// returns; after it, operations record nothing and return tensors that have the shapes they should
// have. It is valid for one call of Run.
type Flow = tape.Flow

// Tensor is an activation that layers pass on. It has a Shape and a DType; Dim(i) is the length of
// one dimension, and Dim(-1) that of the last. It is valid during the call of Model that made it.
type Tensor = tape.Tensor

// Op is one operation as autograd sees it: the tensors that it reads (In), the Shape and DType of
// its output, what it keeps for the backward pass (Keep, KeepOutput, KeepOwn), and what memory it
// needs while it runs (Workspace). See `go doc` of the type in estimate/internal/tape for all
// fields.
type Op = tape.Op

// Own is a tensor that an operation makes for itself and keeps: the entries of Op.KeepOwn.
type Own = tape.Own

// Definition is the interface of a layer of your own. Its method Forward corresponds to forward of
// a PyTorch module:
//
//	Forward(t *nn.Tape, x nn.Tensor) (nn.Tensor, error)
//
// It records on t what the layer does with x, and returns the output. It returns the errors of t's
// methods, and t.Errorf if x does not fit. It must not panic, whatever shape x has. A layer with
// parameters or parts has a second method, which corresponds to __init__:
//
//	Declare(d *nn.Declaration)
//
// It is called once, before Forward, and must not depend on an input.
type Definition = tape.Layer

// Tape takes what a Definition's Forward records: Op for an operation, Call for a part.
type Tape = tape.Tape

// Declaration takes what a Definition's Declare names: Param and Buffer by name and dimensions, Add
// with all that a Param can say, Layer for a part.
type Declaration = tape.Declaration

// Param is a parameter or a buffer as a Definition declares it: its Name within the layer, its Shape and
// DType; Buffer for what is not trained, Tied for the path of the parameter that this one is.
type Param = tape.Param

// custom is a layer that Custom made.
type custom struct{ tape.Layer }

// Definition returns the layer that Custom was given.
func (c custom) Definition() tape.Layer { return c.Layer }

// Custom makes a layer of its definition. The type's name is the kind of its rows, unless it has
// a method Kind that returns another.
func Custom(d Definition) Layer { return custom{d} }
