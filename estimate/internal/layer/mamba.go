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

// Keeps returns what a block keeps of a sequence.
func (s StateSpace) Keeps() setting.CacheSpec {
	return setting.CacheSpec{Kind: setting.Recurrent, Mixer: "mamba", Channels: s.Inner, Kernel: s.Kernel, StateHeads: s.Inner, HeadState: s.State}
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
	for i := range from {
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

// HeadSpace holds the sizes of the mixer of Mamba 2, whose heads have states of their own.
type HeadSpace struct {
	Inner  int  // inner width, of all heads together
	Heads  int  // Inner is a multiple of it
	State  int  // elements of the state for each feature
	Groups int  // groups of heads that share B and C
	Kernel int  // of the convolution
	Chunk  int  // tokens that are computed at once
	Plain  bool // the convolution has no bias

	Bias, OutBias bool // of the projections of input and output
	Scaled        bool // the input, and each feature of its projection, are multiplied by constants
	Gate          Gate // of the output
}

// Gate says how the mixer of Mamba 2 applies the gate to its output.
type Gate uint8

// The gates.
const (
	GateFirst Gate = iota // the gated output is normed, in groups
	NormFirst             // the normed output is gated
	GateAlone             // there is no norm
)

// mixed returns the channels of the convolution: those of the values, B and C.
func (l HeadSpace) mixed() int {
	return int(min(setting.AddSat(int64(l.Inner), setting.FLOPs(2, l.Groups, l.State)), setting.MaxField/4))
}

// Keeps returns what a block keeps of a sequence.
func (l HeadSpace) Keeps() setting.CacheSpec {
	return setting.CacheSpec{
		Kind: setting.Recurrent, Mixer: "mamba2", Channels: l.mixed(), Groups: l.Groups, GroupChannels: setting.Product(2, l.State), Kernel: l.Kernel,
		StateHeads: l.Heads, HeadState: setting.Product(l.Inner/max(1, l.Heads), l.State),
	}
}

// HeadMixer is the mixer of Mamba 2 (arXiv:2405.21060) in PyTorch's own operations, as transformers
// runs it without mamba-ssm, whose kernels keep less.
type HeadMixer struct {
	Hidden int
	HeadSpace
}

func (HeadMixer) Kind() string { return "Mamba2Mixer" }

func (l HeadMixer) parts() tape.Sequential {
	inner := min(l.Inner, setting.MaxField/4)
	parts := tape.Sequential{
		tape.As("in_proj", Linear{In: l.Hidden, Out: inner + l.mixed() + min(l.Heads, setting.MaxField/4), NoBias: !l.Bias}),
		tape.As("conv1d", Conv1d{In: l.mixed(), Out: l.mixed(), Kernel: l.Kernel, Padding: l.Kernel - 1, Groups: l.mixed(), NoBias: l.Plain}),
		tape.As("out_proj", Linear{In: l.Inner, Out: l.Hidden, NoBias: !l.OutBias}),
	}
	if l.Gate != GateAlone {
		parts = append(parts, tape.As("norm", groupedNorm{l.Inner, l.Groups, l.Gate == NormFirst}))
	}
	return parts
}

func (l HeadMixer) Declare(d *tape.Declaration) {
	d.Want("Inner", l.Inner, 1)
	d.Want("Heads", l.Heads, 1)
	d.Want("State", l.State, 1)
	d.Want("Groups", l.Groups, 1)
	d.Want("Kernel", l.Kernel, 1)
	d.Want("Chunk", l.Chunk, 1)
	if l.Inner%l.Heads != 0 || l.Heads%l.Groups != 0 || l.Chunk > setting.MaxField {
		d.Failf("%+v: want Heads that divide the Inner, Groups that divide the Heads, and a Chunk of at most %d", l.HeadSpace, setting.MaxField)
	}
	d.Param("dt_bias", l.Heads)
	d.Param("A_log", l.Heads)
	d.Param("D", l.Heads)
	if l.Scaled {
		d.Buffer("mup_vector", 1, 1, l.Inner+l.mixed()+l.Heads)
	}
	l.parts().Declare(d)
}

func (l HeadMixer) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	f := tape.Flow{Tape: t, Parts: l.parts()}
	length := x.Dim(1)
	d := x.DType
	if l.Scaled {
		x = f.Scale(x)
	}
	projected := f.Call("in_proj", x)
	if l.Scaled {
		projected = f.Scale(projected)
	}
	from := f.Split(projected, 2, l.Inner, l.mixed(), l.Heads)
	y := f.Call("conv1d", f.Permute(from[1], 0, 2, 1))
	y = f.Permute(f.Apply(SiLU{}, f.Part(y, 2, length)), 0, 2, 1)
	y = l.scan(t, y, from[2])
	if *outputGate.Of(t) = from[0]; l.Gate == GateAlone {
		y = f.Mul(y, f.Apply(SiLU{}, from[0]))
	} else {
		y = f.Call("norm", y)
	}
	return f.Call("out_proj", f.In(d, y))
}

// scan runs through the sequence chunk by chunk, in float32 (mamba2_chunk_scan of transformers).
// Each operation here stands for several of PyTorch's, and lists what all of them keep.
func (l HeadMixer) scan(t *tape.Tape, y, steps tape.Tensor) tape.Tensor {
	const wide = alloc.Float32
	batch, length, low := y.Dim(0), y.Dim(1), y.DType.Bits() < 32
	chunks := 1 + max(0, length-1)/l.Chunk
	padded := int(min(setting.FLOPs(chunks, l.Chunk), setting.MaxField))
	own := func(dims ...int) tape.Own { return tape.Own{Shape: append(alloc.Shape{batch}, dims...), DType: wide} }
	one, each, values := tape.Own{Shape: alloc.Shape{l.Heads}, DType: wide}, own(padded, l.Heads), own(padded, l.Inner)
	states, square := own(padded, l.Heads, l.State), own(padded, l.Heads, l.Chunk)
	mask := func(side int) tape.Own { return tape.Own{Shape: alloc.Shape{side, side}, DType: alloc.Bool} }

	steps = t.Op(tape.Op{In: []tape.Tensor{steps}, Shape: steps.Shape, Params: true, KeepOutput: true}) // with their bias, before the softplus
	steps = t.Op(tape.Op{In: []tape.Tensor{steps}, Shape: steps.Shape, KeepOutput: true})               // before they are clamped
	decay := tape.Op{In: []tape.Tensor{steps}, Shape: steps.Shape, DType: wide, Params: true, KeepOutput: true, KeepOwn: []tape.Own{one, one}}
	if low {
		decay.KeepOwn = append(decay.KeepOwn, own(length, l.Heads))
	}
	steps = t.Op(decay)

	// The values times their steps, and the values that skip the states.
	enter := tape.Op{In: []tape.Tensor{y, steps}, Shape: values.Shape, DType: wide, Params: true, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{values}}
	if low {
		enter.Keep, enter.KeepOwn = nil, append(enter.KeepOwn, own(length, l.Inner))
	}
	entered := t.Op(enter)

	// Within a chunk: the decay between any two tokens, the scores of B and C, and their product.
	inside := tape.Op{
		In: []tape.Tensor{entered, steps}, Shape: values.Shape, KeepOwn: []tape.Own{mask(l.Chunk), mask(l.Chunk), square, square, square, states, states, values},
		FLOPs: setting.AddSat(setting.FLOPs(batch, padded, l.Chunk, 2, l.Heads, l.State), setting.FLOPs(batch, padded, l.Chunk, 2, l.Inner)),
	}
	// Between chunks: what remains of each at its end, and the states before it.
	across := tape.Op{
		In: []tape.Tensor{entered, steps}, Shape: values.Shape, FLOPs: setting.FLOPs(batch, padded, l.Inner, l.State, 4),
		KeepOwn: []tape.Own{each, each, states, states, states, mask(chunks + 1), mask(chunks + 1), own(l.Heads, chunks+1, chunks+1), own(chunks+1, l.Inner, l.State), values},
	}
	if chunks == 1 {
		across.KeepOwn = append(across.KeepOwn, own(2, l.Inner, l.State))
	} else { // values and states are copied into the order that the products need
		across.KeepOwn = append(across.KeepOwn, own(chunks, l.Inner, l.State), values)
	}
	out := t.Scale(t.Add(t.Op(inside), t.Op(across))) // and the values that skip the states
	if padded > length {
		out = t.Part(out, 1, length)
	}
	return out
}

// groupedNorm is an RMSNorm of groups of features after a gate, or before it, in float32.
type groupedNorm struct {
	size, groups int
	first        bool // the norm comes before the gate
}

func (groupedNorm) Kind() string { return "RMSNormGated" }

func (l groupedNorm) Declare(d *tape.Declaration) { d.Param("weight", l.size) }

func (l groupedNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	gate := *outputGate.Of(t)
	gate = t.Widen(gate)
	if l.first {
		return t.Mul(l.norm(t, x), t.Apply(SiLU{}, gate))
	}
	return l.norm(t, t.Mul(x, t.Apply(SiLU{}, gate)))
}

func (l groupedNorm) norm(t *tape.Tape, x tape.Tensor) tape.Tensor {
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: t.Resized(x.Shape, l.groups)}},
		FLOPs: setting.Flops(x.Shape, 4), BackwardWorkspace: 2 * t.Size(x),
	}
	if t.Learns() {
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: x.Shape})
	}
	return t.Op(o)
}
