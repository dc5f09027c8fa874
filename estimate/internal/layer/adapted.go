package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// paramAdapter is PEFT's adapter of a parameter that holds the weights of several parts, such as experts, in one tensor
// (lora.ParamWrapper, 0.21): in each forward pass it adds the product of its two matrices to the parameter, so that the sum
// is a tensor as large as the parameter, which the backward pass needs too.
type paramAdapter struct {
	parts, out, in int
	rank           int // of each part
}

func (paramAdapter) Kind() string { return "ParamWrapper" }

// Adapts marks the adapter as trained.
func (paramAdapter) Adapts() {}

func (l paramAdapter) matrices(c *setting.Config) (a, b adapter) {
	d := setting.Or(c.Lora.DType, alloc.Float32)
	return adapter{Linear{In: l.in, Out: l.rank * l.parts, NoBias: true}, d}, adapter{Linear{In: l.rank * l.parts, Out: l.out, NoBias: true}, d}
}

func (l paramAdapter) Declare(d *tape.Declaration) {
	a, b := l.matrices(d.Cfg)
	d.Layer("lora_A", a)
	d.Layer("lora_B", b)
}

func (l paramAdapter) Forward(t *tape.Tape, _ tape.Tensor) tape.Tensor {
	a, b := l.matrices(t.Cfg)
	first := t.Call("lora_A", merged{a}, t.Const(t.Activation(), 1))
	second := t.Call("lora_B", merged{b}, t.Const(t.Activation(), 1))
	factors := []tape.Tensor{first, second}
	shape := alloc.Shape{l.parts, l.out, l.in}
	return t.Op(tape.Op{In: factors, Shape: shape, DType: t.Computes(), Keep: factors, FLOPs: setting.FLOPs(2, l.parts, l.out, l.in, l.rank)})
}

// merged is a matrix of a paramAdapter, which is copied if it is not in the type of the parameter.
type merged struct{ adapter }

func (l merged) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := alloc.Shape{l.Out, l.In}
	if l.dtype == t.Computes() {
		shape = alloc.Shape{1} // the parameter itself takes no other memory
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, DType: t.Computes(), Params: true})
}

// AdaptParam declares the adapter of a parameter of the current layer, if it gets one.
func AdaptParam(d *tape.Declaration, name string, parts, out, in int) {
	if n := d.AdaptsParam(name); n > 0 {
		d.Layer(name, paramAdapter{parts, out, in, n * d.Cfg.Lora.Rank})
	}
}

// AddParam adds an adapted parameter of the current layer to what an operation reads and keeps.
func AddParam(t *tape.Tape, o *tape.Op, name string, parts, out, in int) {
	at := name
	if path := t.DeclaredPath(); path != "" {
		at = path + "." + name
	}
	n := t.Cfg.AdaptedParam(at)
	if n == 0 {
		return
	}
	sum := t.Call(name, paramAdapter{parts, out, in, n * t.Cfg.Lora.Rank}, t.Const(t.Activation(), 1))
	o.In, o.Keep = append(slices.Clip(o.In), sum), append(slices.Clip(o.Keep), sum)
	o.Keep = append(o.Keep, o.In[0]) // for the gradient of the sum
}
