package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Lower is x as autocast gives it to a product: a copy in the type of autocast where x is
// wider. Copies of activations are not shared.
func (t *Tape) Lower(x Tensor) (Tensor, error) {
	if low := t.Cfg.Autocast; low == 0 || x.DType.Bits() <= low.Bits() {
		return x, nil
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: t.Cfg.Autocast})
}

// Lower is Tape.lower.
func (f *Flow) Lower(x Tensor) Tensor {
	return f.Do(x.Shape, func() (Tensor, error) { return f.T.Lower(x) })
}

// Widen is x in float32 where its type is narrower.
func (f *Flow) Widen(x Tensor) Tensor {
	if x.DType.Bits() >= 32 {
		return x
	}
	return f.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// Raise is x as autocast gives it to what computes in float32.
func (t *Tape) Raise(x Tensor) (Tensor, error) {
	if t.Cfg.Autocast == 0 || x.DType.Bits() >= 32 {
		return x, nil
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// Computes is the type in which products compute.
func (t *Tape) Computes() alloc.DType { return setting.Or(t.Cfg.Autocast, t.Activation()) }

// Cast completes an operation whose weight autocast copies: the copy is kept for the gradient
// of the input and, of a weight that is trained, in autocast's cache until the forward
// pass is over. The gradient of the weight appears in the copy's type first.
func (t *Tape) Cast(o *Op, dims ...int) {
	low := t.Cfg.Autocast
	if low == 0 || t.Cfg.Weights.Bits() <= low.Bits() {
		return
	}
	weight := t.clone(dims)
	bytes, err := weight.Bytes(low)
	if err != nil {
		return // the declaration has reported it
	}
	bytes = min(bytes, setting.MaxTotal)
	if o.In[0].Grad {
		o.KeepOwn = []Own{{Shape: weight, DType: low}}
		o.cached = t.Learns()
	} else {
		o.Workspace += bytes
	}
	if t.Learns() {
		o.BackwardWorkspace += bytes
	}
}
