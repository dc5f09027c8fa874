package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Lower casts x down to autocast's type, as autocast does with the inputs of a product. A narrower
// x is returned as it is. Each call makes a copy of its own.
func (t *Tape) Lower(x Tensor) Tensor {
	if low := t.Cfg.Autocast; low == 0 || x.DType.Bits() <= low.Bits() {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: t.Cfg.Autocast})
}

// Widen casts x to float32 if its type is narrower.
func (t *Tape) Widen(x Tensor) Tensor {
	if x.DType.Bits() >= 32 {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// Raise casts x to float32 where autocast runs, as it does with the inputs of operations that
// compute in float32.
func (t *Tape) Raise(x Tensor) Tensor {
	if t.Cfg.Autocast == 0 {
		return x
	}
	return t.Widen(x)
}

// Computes returns the element type in which matrix products compute.
func (t *Tape) Computes() alloc.DType { return setting.Or(t.Cfg.Autocast, t.Activation()) }

// Cast completes an operation whose weight autocast copies to its own type. The copy is kept for
// the gradient of the input. The copy of a trained weight also stays in autocast's cache until the
// forward pass is over, and the weight's gradient is first made in the copy's type.
func (t *Tape) Cast(o *Op, dims ...int) {
	low := t.Cfg.Autocast
	if low == 0 || t.Cfg.Weights.Bits() <= low.Bits() {
		return
	}
	weight := t.clone(dims)
	bytes, err := weight.Bytes(low)
	if err != nil {
		return // the declaration has already reported it
	}
	bytes = min(bytes, setting.MaxTotal)
	if o.In[0].grad {
		o.KeepOwn = []Own{{Shape: weight, DType: low}}
		o.cached = t.Learns()
	} else {
		o.Workspace += bytes
	}
	if t.Learns() {
		o.BackwardWorkspace += bytes
	}
}
