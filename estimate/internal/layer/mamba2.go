package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// HeadSpace holds the sizes of the mixer of Mamba 2, whose heads have states of their own.
type HeadSpace struct {
	Inner  int  // inner width, of all heads together
	Heads  int  // Inner is a multiple of it
	State  int  // elements of the state for each feature
	Groups int  // groups of heads that share B and C
	Kernel int  // of the convolution
	Chunk  int  // tokens that are computed at once
	Bias   bool // of the projections
	Plain  bool // the convolution has no bias
}

// mixed returns the channels of the convolution: those of the values, B and C.
func (l HeadSpace) mixed() int {
	return int(min(setting.AddSat(int64(l.Inner), setting.FLOPs(2, l.Groups, l.State)), setting.MaxField/4))
}

// States returns the number of elements that a block keeps for each sequence.
func (l HeadSpace) States() int64 {
	return setting.AddSat(setting.FLOPs(l.Inner, l.State), setting.FLOPs(l.mixed(), l.Kernel))
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
	return tape.Sequential{
		tape.As("in_proj", Linear{In: l.Hidden, Out: inner + l.mixed() + min(l.Heads, setting.MaxField/4), NoBias: !l.Bias}),
		tape.As("conv1d", Conv1d{In: l.mixed(), Out: l.mixed(), Kernel: l.Kernel, Padding: l.Kernel - 1, Groups: l.mixed(), NoBias: l.Plain}),
		tape.As("norm", groupedNorm{l.Inner, l.Groups}),
		tape.As("out_proj", Linear{In: l.Inner, Out: l.Hidden, NoBias: !l.Bias}),
	}
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
	l.parts().Declare(d)
}

func (l HeadMixer) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	f := tape.Flow{Tape: t, Parts: l.parts()}
	length := x.Dim(1)
	from := f.Split(f.Call("in_proj", x), 2, l.Inner, l.mixed(), l.Heads)
	y := f.Call("conv1d", f.Permute(from[1], 0, 2, 1))
	y = f.Permute(f.Apply(SiLU{}, f.Part(y, 2, length)), 0, 2, 1)
	y = l.scan(t, y, from[2])
	*outputGate.Of(t) = from[0]
	y = f.Call("norm", y)
	y = f.In(x.DType, y)
	return f.Call("out_proj", y)
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

// groupedNorm is an RMSNorm of groups of features after a gate, in float32.
type groupedNorm struct{ size, groups int }

func (groupedNorm) Kind() string { return "RMSNormGated" }

func (l groupedNorm) Declare(d *tape.Declaration) { d.Param("weight", l.size) }

func (l groupedNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	gate := *outputGate.Of(t)
	gate = t.Widen(gate)
	x = t.Mul(x, t.Apply(SiLU{}, gate))
	o := tape.Op{
		In: []tape.Tensor{x}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{{Shape: t.Resized(x.Shape, l.groups)}},
		FLOPs: setting.Flops(x.Shape, 4), BackwardWorkspace: 2 * t.Size(x),
	}
	if t.Learns() {
		o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: x.Shape})
	}
	return t.Op(o)
}
