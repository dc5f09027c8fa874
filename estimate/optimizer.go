package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Optimizer is an optimizer, known by the states that it holds for each parameter.
type Optimizer uint8

// The optimizers.
const (
	NoOptimizer Optimizer = iota
	// SGD without momentum has no state.
	SGD
	// Momentum is SGD with momentum: one element a parameter.
	Momentum
	// Adam has two elements a parameter (torch.optim.Adam: exp_avg and
	// exp_avg_sq).
	Adam
	// AdamW has the states of Adam.
	AdamW
	// Adam8bit is Adam of bitsandbytes: two bytes a parameter and two float32
	// constants for each block of 256; a tensor of fewer than 4096 elements
	// keeps float32 states (bitsandbytes/optim/optimizer.py: Optimizer2State,
	// min_8bit_size; arXiv:2110.02861).
	Adam8bit
	// Adafactor keeps, in place of a matrix's second moments, the sums of its
	// rows and columns, and no first moment (arXiv:1804.04235, section 3;
	// transformers.Adafactor with beta1=None).
	Adafactor
)

// String is the optimizer's name.
func (o Optimizer) String() string {
	names := [...]string{"none", "SGD", "SGD with momentum", "Adam", "AdamW", "8-bit Adam", "Adafactor"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Optimizer(%d)", uint8(o))
	}
	return names[o]
}

// State returns the memory of the states of one parameter, whose element type
// is that in which the optimizer computes: that of the weights, or float32 with
// master weights.
func (o Optimizer) State(shape alloc.Shape, d alloc.DType) (alloc.Bytes, error) {
	n, err := shape.Elements()
	if err != nil {
		return 0, err
	}
	if !d.Valid() || n > maxTotal/16 {
		return 0, fmt.Errorf("estimate the states of %v: %v elements of %v are too many", o, n, d)
	}
	size := func(n int64) alloc.Bytes { return alloc.Bytes((n*int64(d.Bits()) + 7) / 8) }
	switch o {
	case Momentum:
		return size(n), nil
	case Adam, AdamW:
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

// temporary is what a step of the optimizer needs besides its states, of which there are
// so many bytes, for parameters the largest of which has so many: with ForEach Adam makes
// a temporary of all parameters at once ("uses ~ sizeof(params) more peak memory",
// documentation of torch.optim.Adam), OneByOne two of one parameter.
func (o Optimizer) temporary(states, largest int64, form Form) int64 {
	switch {
	case o == Adafactor: // the update, and its square
		return 2 * largest
	case o != Adam && o != AdamW || form == Fused:
		return 0
	case form == OneByOne:
		return 2 * largest
	default:
		return states / 2
	}
}

// states is the number of tensors in which the optimizer holds what it keeps of a parameter.
func (o Optimizer) states() int {
	switch o {
	case Momentum:
		return 1
	case Adam, AdamW, Adam8bit, Adafactor:
		return 2
	default:
		return 0
	}
}
