package setting

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Optimizer is an optimizer, as far as its memory goes: the states that it holds for each
// parameter, which estimate.Train lists. The zero value is NoOptimizer.
type Optimizer string

// The optimizers, as estimate.Train and the command line name them.
const (
	Adam        Optimizer = "adam"
	AdamW       Optimizer = "adamw"
	Adam8bit    Optimizer = "adam8bit"
	Adafactor   Optimizer = "adafactor"
	Lion        Optimizer = "lion"
	Muon        Optimizer = "muon"
	SGD         Optimizer = "sgd"
	Momentum    Optimizer = "momentum"
	NoOptimizer Optimizer = "none"
)

// check returns an error unless o is one of the constants.
func (o Optimizer) check(name string) error {
	return word(name, o, Adam, AdamW, Adam8bit, Adafactor, Lion, Muon, SGD, Momentum, NoOptimizer)
}

// State returns the memory of the states of one parameter. The element type d is the one in which
// the optimizer computes: that of the weights, or float32 with master weights. A matrix is taken
// for one of a hidden layer, not for an embedding or the head. A shape that is not valid is
// alloc.ErrShape; an amount out of range is an error too.
func (o Optimizer) State(shape alloc.Shape, d alloc.DType) (alloc.Bytes, error) {
	n, err := shape.Elements()
	if err != nil {
		return 0, err
	}
	if err := o.check("Optimizer"); err != nil {
		return 0, fmt.Errorf("estimate the states of an optimizer: %w", err)
	}
	if d.Bits() == 0 || n > MaxTotal/16 {
		return 0, fmt.Errorf("estimate the states of %v: %v elements of %v: want at most %d, of an element type of package alloc", o, n, d, int64(MaxTotal/16))
	}
	size := func(n int64) alloc.Bytes { return alloc.Bytes((n*int64(d.Bits()) + 7) / 8) }
	switch o {
	case Momentum, Lion:
		return size(n), nil
	case Adam, AdamW:
		return 2 * size(n), nil
	case Muon:
		if len(shape) == 2 {
			return size(n), nil
		}
		return 2 * size(n), nil
	case Adam8bit:
		if n < 4096 {
			return alloc.Bytes(2 * 4 * n), nil
		}
		return alloc.Bytes(2*n + 2*4*((n+255)/256)), nil
	case Adafactor:
		if len(shape) < 2 || n == 0 {
			return size(n), nil
		}
		rows := n / int64(shape[len(shape)-1])
		columns := n / int64(shape[len(shape)-2])
		return size(rows) + size(columns), nil
	default:
		return 0, nil
	}
}

// Work is the memory that a step of an optimizer needs besides its states.
type Work struct {
	Alone    int64 // for the current parameter, whatever the Form
	Single   int64 // for the current parameter, with OneByOne
	Together int64 // for all parameters at once, with ForEach
	Decay    int64 // in addition, if a weight decay is added to the gradients
}

// Work returns what a step needs for one parameter. Adam with ForEach makes a temporary tensor for
// every parameter at once ("uses ~ sizeof(params) more peak memory", documentation of
// torch.optim.Adam), with OneByOne two for the current parameter. Lion does the same
// (lion_pytorch). Muon makes each matrix's copy in bfloat16 orthogonal (torch/optim/_muon.py).
func (o Optimizer) Work(shape alloc.Shape, n int64, d alloc.DType) Work {
	size := n * int64(d.Bits()) / 8
	switch {
	case o == Adafactor: // the update, and its square
		return Work{Alone: 2 * size}
	case o == Muon && len(shape) == 2:
		small := int64(min(shape[0], shape[1]))
		return Work{Alone: size + 2*2*n + 2*2*small*small}
	case o == Adam:
		return Work{Single: 2 * size, Together: size, Decay: size}
	case o == SGD || o == Momentum:
		return Work{Decay: size}
	case o == AdamW || o == Lion || o == Muon:
		return Work{Single: 2 * size, Together: size}
	}
	return Work{}
}

func (w *Work) Add(v Work) {
	w.Alone, w.Single, w.Together = max(w.Alone, v.Alone), max(w.Single, v.Single), w.Together+v.Together
	w.Decay += v.Decay
}

// Temporary returns the most memory that the work takes at once.
func (w Work) Temporary(form, decay string) int64 {
	switch form {
	case ForEach:
		if decay == DecayUsed {
			return w.Together + w.Decay
		}
		return max(w.Alone, w.Together)
	case OneByOne:
		return max(w.Alone, w.Single)
	}
	return w.Alone
}

// States returns the number of tensors in which the optimizer holds its state, from the bytes of
// the state and of the parameter.
func (o Optimizer) States(state, parameter int64) int64 {
	switch o {
	case Momentum, Lion:
		return 1
	case Muon:
		return max(1, min(2, state/max(1, parameter)))
	case Adam, AdamW, Adam8bit, Adafactor:
		return 2
	default:
		return 0
	}
}
