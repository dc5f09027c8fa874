package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// mamba builds Mamba: blocks of a state-space mixer, and a stream between them in float32.
func (c Transformer) mamba() []Layer {
	block := mambaBlock{norm: RMSNorm{Size: c.Hidden, Unfused: true}, mixer: mambaMixer{c.Hidden, *c.stateSpace()}}
	layers := []Layer{Named{"backbone", Sequential{
		Named{"embeddings", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		Named{"layers", Repeat{N: c.Blocks, Layer: block}},
		Named{"norm_f", RMSNorm{Size: c.Hidden, Unfused: true}},
	}}}
	if c.NoHead {
		return layers
	}
	head := Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: ByColumns}
	if c.Tied {
		head.Tied = "backbone.embeddings.weight"
	}
	return append(layers, inline{narrowed{}}, Named{"lm_head", head})
}

// StateSpace are the numbers of Mamba's mixer.
type StateSpace struct {
	Inner  int  // width inside; 0 means twice the Hidden
	State  int  // elements of the state for each feature; 0 means 16
	Rank   int  // of the time steps; 0 means a 16th of the Hidden
	Kernel int  // of the convolution; 0 means 4
	Bias   bool // of the projections
}

func (c Transformer) stateSpace() *StateSpace {
	s := StateSpace{}
	if c.Mixer != nil {
		s = *c.Mixer
	}
	hidden := min(max(c.Hidden, 0), maxField/2)
	s.Inner, s.State, s.Rank, s.Kernel = or(s.Inner, 2*hidden), or(s.State, 16), or(s.Rank, (hidden+15)/16), or(s.Kernel, 4)
	return &s
}

// states are the elements that a block keeps of each sequence.
func (s StateSpace) states() int64 {
	return addSat(FLOPs(s.Inner, s.State), FLOPs(s.Inner, s.Kernel))
}

// mambaBlock adds what the mixer makes to a stream in float32.
type mambaBlock struct {
	norm  Layer
	mixer mambaMixer
}

// Kind names the row.
func (mambaBlock) Kind() string { return "MambaBlock" }

// Declare implements Layer.
func (b mambaBlock) Declare(d *Declaration) {
	d.Layer("norm", b.norm)
	d.Layer("mixer", b.mixer)
}

// Forward implements Layer.
func (b mambaBlock) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := narrowed{}.Forward(t, x)
	if err == nil {
		y, err = t.Call("norm", b.norm, y)
	}
	if err == nil {
		y, err = t.Call("mixer", b.mixer, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, DType: alloc.Float32, PassGrad: true})
}

// narrowed is its input in the type of activations.
type narrowed struct{}

// Declare implements Layer.
func (narrowed) Declare(*Declaration) {}

// Forward implements Layer.
func (narrowed) Forward(t *Tape, x Tensor) (Tensor, error) {
	if x.DType == t.Activation() {
		return x, nil
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: t.Activation()})
}

// mambaMixer is the mixer of Mamba (arXiv:2312.00752) in PyTorch's own operations, as transformers
// runs it where the kernels of mamba-ssm are not installed. Those keep less.
type mambaMixer struct {
	hidden int
	StateSpace
}

// Kind names the row.
func (mambaMixer) Kind() string { return "MambaMixer" }

func (l mambaMixer) parts() (in, conv, x, step, out Layer) {
	return Linear{In: l.hidden, Out: 2 * l.Inner, NoBias: !l.Bias},
		Conv1d{In: l.Inner, Out: l.Inner, Kernel: l.Kernel, Padding: l.Kernel - 1, Groups: l.Inner},
		Linear{In: l.Inner, Out: l.Rank + 2*l.State, NoBias: true},
		Linear{In: l.Rank, Out: l.Inner},
		Linear{In: l.Inner, Out: l.hidden, NoBias: !l.Bias}
}

// Declare implements Layer.
func (l mambaMixer) Declare(d *Declaration) {
	const most = maxField / 4 // two of them are added below
	if l.Inner > most || l.State > most || l.Rank > most {
		d.Errorf("%+v: want at most %d each", l.StateSpace, most)
		return
	}
	if !d.wantAll(setting{"Inner", l.Inner, 1}, setting{"State", l.State, 1}, setting{"Rank", l.Rank, 1}, setting{"Kernel", l.Kernel, 1}) {
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
}

// Forward implements Layer.
func (l mambaMixer) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	t.stepwise, t.recurrent = true, true
	in, conv, proj, _, out := l.parts()
	batch, length := x.Shape[0], x.Shape[1]
	wide := alloc.Shape{batch, l.Inner, length}
	both, err := t.Call("in_proj", in, x)
	if err != nil {
		return Tensor{}, err
	}
	h, err := t.Op(Op{In: []Tensor{both}, Shape: wide, View: true})
	if err == nil {
		h, err = t.Call("conv1d", conv, h)
	}
	if err == nil {
		h, err = t.Op(Op{In: []Tensor{h}, Shape: wide, Keep: []Tensor{h}})
	}
	if err != nil {
		return Tensor{}, err
	}
	p, err := t.Op(Op{In: []Tensor{h}, Shape: alloc.Shape{batch, length, l.Inner}})
	if err == nil {
		p, err = t.Call("x_proj", proj, p)
	}
	if err != nil {
		return Tensor{}, err
	}
	y, err := l.scan(t, h, p, wide)
	if err != nil {
		return Tensor{}, err
	}
	gate, err := t.Op(Op{In: []Tensor{both}, Shape: wide, Keep: []Tensor{both}})
	if err == nil {
		y, err = mul(t, y, gate)
	}
	if err == nil {
		y, err = t.Op(Op{In: []Tensor{y}, Shape: alloc.Shape{batch, length, l.Inner}, View: true})
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("out_proj", out, y)
}

// scan goes through the sequence, state by state; p has time steps and the matrices B and C.
func (l mambaMixer) scan(t *Tape, h, p Tensor, wide alloc.Shape) (Tensor, error) {
	batch, length := wide[0], wide[2]
	states := alloc.Shape{batch, l.Inner, length, l.State}
	low := h.DType.Bits() < 32
	step, err := t.Op(Op{In: []Tensor{p}, Shape: wide, DType: h.DType, Params: true, Keep: []Tensor{p}, FLOPs: FLOPs(batch, length, l.Rank, l.Inner, 2)})
	if err == nil {
		step, err = t.Op(Op{In: []Tensor{step}, Shape: wide, DType: alloc.Float32, Params: true, KeepOutput: true})
	}
	if err == nil {
		step, err = t.Op(Op{In: []Tensor{step}, Shape: wide, KeepOutput: true})
	}
	if err != nil {
		return Tensor{}, err
	}
	matrix := Own{alloc.Shape{l.Inner, l.State}, alloc.Float32}
	decay, err := t.Op(Op{In: []Tensor{step}, Shape: states, Params: true, Keep: []Tensor{step}, KeepOwn: []Own{matrix, matrix}, KeepOutput: true})
	if err != nil {
		return Tensor{}, err
	}
	entry := Op{In: []Tensor{step, p}, Shape: states, DType: alloc.Float32, Keep: []Tensor{step, p}}
	if low {
		entry.KeepOwn = []Own{{alloc.Shape{batch, length, l.State}, alloc.Float32}}
	}
	enters, err := t.Op(entry)
	if err == nil {
		enters, err = t.Op(Op{In: []Tensor{enters, h}, Shape: states, Keep: []Tensor{enters, h}})
	}
	if err != nil {
		return Tensor{}, err
	}
	each := func(n int, d alloc.DType) Own { return Own{alloc.Shape{n, batch, l.Inner, l.State}, d} }
	run := Op{
		In: []Tensor{decay, enters, p}, Shape: wide, DType: h.DType, Keep: []Tensor{decay, p},
		KeepOwn: []Own{each(length+1, h.DType)}, FLOPs: flops(states, 6),
	}
	if low && length > 1 {
		run.KeepOwn = append(run.KeepOwn, each(length-1, alloc.Float32))
	}
	y, err := t.Op(run)
	if err != nil {
		return Tensor{}, err
	}
	skip := Op{In: []Tensor{y, h}, Shape: wide, Params: true, Keep: []Tensor{h}}
	if low {
		skip.KeepOwn = []Own{{alloc.Shape{l.Inner}, alloc.Float32}, {Shape: wide}}
	}
	return t.Op(skip)
}
