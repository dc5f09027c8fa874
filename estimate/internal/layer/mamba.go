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

// Kind returns what the rows show as the kind of layer.
func (MambaBlock) Kind() string { return "MambaBlock" }

func (b MambaBlock) Declare(d *tape.Declaration) {
	d.Layer("norm", b.Norm)
	d.Layer("mixer", b.Mixer)
}

func (b MambaBlock) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := Narrowed{}.Forward(t, x)
	if err == nil {
		y, err = t.Call("norm", b.Norm, y)
	}
	if err == nil {
		y, err = t.Call("mixer", b.Mixer, y)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x, y}, Shape: x.Shape, DType: alloc.Float32, PassGrad: true})
}

// Narrowed casts its input to the type of activations.
type Narrowed struct{}

func (Narrowed) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if x.DType == t.Activation() {
		return x, nil
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: t.Activation()})
}

// MambaMixer is the mixer of Mamba (arXiv:2312.00752) in PyTorch's own operations, as transformers
// runs it without mamba-ssm, whose kernels keep less.
type MambaMixer struct {
	Hidden int
	StateSpace
}

// Kind returns what the rows show as the kind of layer.
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
		d.Errorf("%+v: want at most %d each", l.StateSpace, most)
		return
	}
	if !d.WantAll(tape.Setting{Name: "Inner", Value: l.Inner, Least: 1}, tape.Setting{Name: "State", Value: l.State, Least: 1}, tape.Setting{Name: "Rank", Value: l.Rank, Least: 1}, tape.Setting{Name: "Kernel", Value: l.Kernel, Least: 1}) {
		return
	}
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
func (l MambaMixer) normed(t *tape.Tape, p tape.Tensor) ([3]tape.Tensor, error) {
	if !l.Normed {
		return [3]tape.Tensor{p, p, p}, nil
	}
	var from [3]tape.Tensor
	parts, err := t.Parts(p, l.Rank, l.State, l.State)
	for i := 0; i < len(from) && err == nil; i++ {
		from[i], err = t.Call(mambaNorms[i], l.norm(i), parts[i])
	}
	return from, err
}

func (l MambaMixer) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	in, conv, proj, _, out := l.parts()
	batch, length := x.Shape[0], x.Shape[1]
	wide := alloc.Shape{batch, l.Inner, length}
	both, err := t.Call("in_proj", in, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	h, err := t.Op(tape.Op{In: []tape.Tensor{both}, Shape: wide, View: true})
	if err == nil {
		h, err = t.Call("conv1d", conv, h)
	}
	if err == nil {
		h, err = t.Op(tape.Op{In: []tape.Tensor{h}, Shape: wide, Keep: []tape.Tensor{h}})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	p, err := t.Op(tape.Op{In: []tape.Tensor{h}, Shape: alloc.Shape{batch, length, l.Inner}})
	if err == nil {
		p, err = t.Call("x_proj", proj, p)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	from, err := l.normed(t, p)
	if err != nil {
		return tape.Tensor{}, err
	}
	y, err := l.scan(t, h, from, wide)
	if err != nil {
		return tape.Tensor{}, err
	}
	gate, err := t.Op(tape.Op{In: []tape.Tensor{both}, Shape: wide, Keep: []tape.Tensor{both}})
	if err == nil {
		y, err = tape.Mul(t, y, gate)
	}
	if err == nil {
		y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: alloc.Shape{batch, length, l.Inner}, View: true})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call("out_proj", out, y)
}

// scan runs through the sequence state by state. from holds the time steps and the matrices B and
// C.
func (l MambaMixer) scan(t *tape.Tape, h tape.Tensor, from [3]tape.Tensor, wide alloc.Shape) (tape.Tensor, error) {
	batch, length := wide[0], wide[2]
	states := alloc.Shape{batch, l.Inner, length, l.State}
	low := h.DType.Bits() < 32
	step, err := t.Op(tape.Op{In: []tape.Tensor{from[0]}, Shape: wide, DType: h.DType, Params: true, Keep: []tape.Tensor{from[0]}, FLOPs: setting.FLOPs(batch, length, l.Rank, l.Inner, 2)})
	if err == nil {
		step, err = t.Op(tape.Op{In: []tape.Tensor{step}, Shape: wide, DType: alloc.Float32, Params: true, KeepOutput: true})
	}
	if err == nil {
		step, err = t.Op(tape.Op{In: []tape.Tensor{step}, Shape: wide, KeepOutput: true})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	matrix := tape.Own{Shape: alloc.Shape{l.Inner, l.State}, DType: alloc.Float32}
	decay, err := t.Op(tape.Op{In: []tape.Tensor{step}, Shape: states, Params: true, Keep: []tape.Tensor{step}, KeepOwn: []tape.Own{matrix, matrix}, KeepOutput: true})
	if err != nil {
		return tape.Tensor{}, err
	}
	entry := tape.Op{In: []tape.Tensor{step, from[1]}, Shape: states, DType: alloc.Float32, Keep: []tape.Tensor{step, from[1]}}
	if low {
		entry.Keep = entry.Keep[:1]
		entry.KeepOwn = []tape.Own{{Shape: alloc.Shape{batch, length, l.State}, DType: alloc.Float32}}
	}
	enters, err := t.Op(entry)
	if err == nil {
		enters, err = t.Op(tape.Op{In: []tape.Tensor{enters, h}, Shape: states, Keep: []tape.Tensor{enters, h}})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
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
	y, err := t.Op(run)
	if err != nil {
		return tape.Tensor{}, err
	}
	skip := tape.Op{In: []tape.Tensor{y, h}, Shape: wide, Params: true, Keep: []tape.Tensor{h}}
	if low {
		skip.KeepOwn = []tape.Own{{Shape: alloc.Shape{l.Inner}, DType: alloc.Float32}, {Shape: wide}}
	}
	return t.Op(skip)
}
