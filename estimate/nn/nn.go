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
// a layer of your own: parts, parameters and a function, for what has two inputs or skips. A Class
// names a layer without settings, such as "GELU". Package zoo has well-known models, and package checkpoint reads model files.
//
// Layers may be used by several goroutines at once.
package nn

// Layer is a part of a model, as torch.nn.Module is in PyTorch. One layer may stand at several places
// of a model, and then has parameters of its own at each of them, unless Share says otherwise.
// Only this package has types that are layers; a Module is one of your own.
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
