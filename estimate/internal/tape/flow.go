package tape

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

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
		d.Failf("Run is nil: want a function")
	}
	for _, p := range m.Params {
		d.Add(p)
	}
	m.Parts.Declare(d)
}

func (m Module) Forward(t *Tape, x Tensor) Tensor { return m.Run(&Flow{t, m.Parts}, x) }

// Handle is a Flow as a program sees it: nn.Flow is defined by it, and so has none of the methods of a Tape but its own.
type Handle struct{ flow *Flow }

// Handle returns the handle of f.
func (f *Flow) Handle() *Handle { return &Handle{f} }

// Flow returns the Flow of h.
func (h *Handle) Flow() *Flow { return h.flow }

// Flow is a Tape that knows the parts of a Module. It is valid for one call of Run.
type Flow struct {
	*Tape
	Parts Sequential
}

// Call runs the part with this name; "blocks.3" is part 3 of the Sequential or Repeat named blocks.
// The part reads the tensors of beside with Beside; if none are given it reads those that the
// Module was given.
func (f *Flow) Call(name string, x Tensor, beside ...Tensor) Tensor {
	if len(beside) == 0 {
		beside = f.beside
	}
	l := partOf(f.Parts, name)
	if l == nil {
		f.Failf("it calls %q, which is none of its Parts: name them with As", name)
	}
	return f.Tape.Call(name, l, x, beside...)
}
