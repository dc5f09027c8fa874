package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// StateSpace holds the sizes of Mamba's mixer.
type StateSpace struct {
	Inner  int  // inner width; 0 means twice the Hidden
	State  int  // elements of the state for each feature; 0 means 16
	Rank   int  // of the time steps; 0 means a 16th of Hidden
	Kernel int  // of the convolution; 0 means 4
	Bias   bool // of the projections
	Normed bool // the time steps, B and C have norms, as in Jamba
}

// States returns the number of elements that a block keeps for each sequence.
func (s StateSpace) States() int64 {
	return setting.AddSat(setting.FLOPs(s.Inner, s.State), setting.FLOPs(s.Inner, s.Kernel))
}

// MambaBlock adds the mixer's output to a residual stream in float32.
type MambaBlock struct {
	Norm, Mixer tape.Layer
}

func (MambaBlock) Kind() string { return "MambaBlock" }

func (b MambaBlock) Declare(d *tape.Declaration) {
	d.Layer("norm", b.Norm)
	d.Layer("mixer", b.Mixer)
}

func (b MambaBlock) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := Narrowed{}.Forward(t, x)
	y = t.Call("norm", b.Norm, y)
	y = t.Call("mixer", b.Mixer, y)
	return t.Op(tape.Op{In: []tape.Tensor{x, y}, Shape: x.Shape, DType: alloc.Float32, PassGrad: true})
}

// Narrowed casts its input to the type of activations.
type Narrowed struct{}

func (Narrowed) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if x.DType == t.Activation() {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: t.Activation()})
}

// MambaMixer is the mixer of Mamba (arXiv:2312.00752) in PyTorch's own operations, as transformers
// runs it without mamba-ssm, whose kernels keep less.
type MambaMixer struct {
	Hidden int
	StateSpace
}

func (MambaMixer) Kind() string { return "MambaMixer" }

func (l MambaMixer) parts() (in, conv, x, step, out tape.Layer) {
	return Linear{In: l.Hidden, Out: 2 * l.Inner, NoBias: !l.Bias},
		Conv1d{In: l.Inner, Out: l.Inner, Kernel: l.Kernel, Padding: l.Kernel - 1, Groups: l.Inner},
		Linear{In: l.Inner, Out: l.Rank + 2*l.State, NoBias: true},
		Linear{In: l.Rank, Out: l.Inner},
		Linear{In: l.Inner, Out: l.Hidden, NoBias: !l.Bias}
}

func (l MambaMixer) Declare(d *tape.Declaration) {
	const most = setting.MaxField / 4 // two of them are added below
	if l.Inner > most || l.State > most || l.Rank > most {
		d.Failf("%+v: want at most %d each", l.StateSpace, most)
	}
	d.Want("Inner", l.Inner, 1)
	d.Want("State", l.State, 1)
	d.Want("Rank", l.Rank, 1)
	d.Want("Kernel", l.Kernel, 1)
	in, conv, x, step, out := l.parts()
	d.Param("A_log", l.Inner, l.State)
	d.Param("D", l.Inner)
	d.Layer("conv1d", conv)
	d.Layer("in_proj", in)
	d.Layer("x_proj", x)
	d.Layer("dt_proj", step)
	d.Layer("out_proj", out)
	if l.Normed {
		for i, name := range mambaNorms {
			d.Layer(name, l.norm(i))
		}
	}
}

// mambaNorms are the norms of the time steps, of B and of C.
var mambaNorms = [3]string{"dt_layernorm", "b_layernorm", "c_layernorm"}

func (l MambaMixer) norm(i int) tape.Layer {
	return RMSNorm{Size: [3]int{l.Rank, l.State, l.State}[i], Unfused: true}
}

// normed returns the three parts of the projection p after their norms. Without norms the three are
// not separate tensors, and only p is kept.
func (l MambaMixer) normed(t *tape.Tape, p tape.Tensor) [3]tape.Tensor {
	if !l.Normed {
		return [3]tape.Tensor{p, p, p}
	}
	var from [3]tape.Tensor
	parts := t.Parts(p, l.Rank, l.State, l.State)
	for i := 0; i < len(from); i++ {
		from[i] = t.Call(mambaNorms[i], l.norm(i), parts[i])
	}
	return from
}

func (l MambaMixer) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	in, conv, proj, _, out := l.parts()
	batch, length := x.Shape[0], x.Shape[1]
	wide := alloc.Shape{batch, l.Inner, length}
	both := t.Call("in_proj", in, x)
	h := t.Op(tape.Op{In: []tape.Tensor{both}, Shape: wide, View: true})
	h = t.Call("conv1d", conv, h)
	h = t.Op(tape.Op{In: []tape.Tensor{h}, Shape: wide, Keep: []tape.Tensor{h}})
	p := t.Op(tape.Op{In: []tape.Tensor{h}, Shape: alloc.Shape{batch, length, l.Inner}})
	p = t.Call("x_proj", proj, p)
	from := l.normed(t, p)
	y := l.scan(t, h, from, wide)
	gate := t.Op(tape.Op{In: []tape.Tensor{both}, Shape: wide, Keep: []tape.Tensor{both}})
	y = t.Mul(y, gate)
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: alloc.Shape{batch, length, l.Inner}, View: true})
	return t.Call("out_proj", out, y)
}

// scan runs through the sequence state by state. from holds the time steps and the matrices B and
// C.
func (l MambaMixer) scan(t *tape.Tape, h tape.Tensor, from [3]tape.Tensor, wide alloc.Shape) tape.Tensor {
	batch, length := wide[0], wide[2]
	states := alloc.Shape{batch, l.Inner, length, l.State}
	low := h.DType.Bits() < 32
	step := t.Op(tape.Op{In: []tape.Tensor{from[0]}, Shape: wide, DType: h.DType, Params: true, Keep: []tape.Tensor{from[0]}, FLOPs: setting.FLOPs(batch, length, l.Rank, l.Inner, 2)})
	step = t.Op(tape.Op{In: []tape.Tensor{step}, Shape: wide, DType: alloc.Float32, Params: true, KeepOutput: true})
	step = t.Op(tape.Op{In: []tape.Tensor{step}, Shape: wide, KeepOutput: true})
	matrix := tape.Own{Shape: alloc.Shape{l.Inner, l.State}, DType: alloc.Float32}
	decay := t.Op(tape.Op{In: []tape.Tensor{step}, Shape: states, Params: true, Keep: []tape.Tensor{step}, KeepOwn: []tape.Own{matrix, matrix}, KeepOutput: true})
	entry := tape.Op{In: []tape.Tensor{step, from[1]}, Shape: states, DType: alloc.Float32, Keep: []tape.Tensor{step, from[1]}}
	if low {
		entry.Keep = entry.Keep[:1]
		entry.KeepOwn = []tape.Own{{Shape: alloc.Shape{batch, length, l.State}, DType: alloc.Float32}}
	}
	enters := t.Op(entry)
	enters = t.Op(tape.Op{In: []tape.Tensor{enters, h}, Shape: states, Keep: []tape.Tensor{enters, h}})
	each := func(n int, d alloc.DType) tape.Own {
		return tape.Own{Shape: alloc.Shape{n, batch, l.Inner, l.State}, DType: d}
	}
	run := tape.Op{
		In: []tape.Tensor{decay, enters, from[2]}, Shape: wide, DType: h.DType, Keep: []tape.Tensor{decay, from[2]},
		KeepOwn: []tape.Own{each(length+1, h.DType)}, FLOPs: setting.Flops(states, 6),
	}
	if low && length > 1 {
		run.KeepOwn = append(run.KeepOwn, each(length-1, alloc.Float32))
	}
	y := t.Op(run)
	skip := tape.Op{In: []tape.Tensor{y, h}, Shape: wide, Params: true, Keep: []tape.Tensor{h}}
	if low {
		skip.KeepOwn = []tape.Own{{Shape: alloc.Shape{l.Inner}, DType: alloc.Float32}, {Shape: wide}}
	}
	return t.Op(skip)
}
