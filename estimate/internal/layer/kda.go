package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// KimiDelta holds the sizes of Kimi's delta attention, a gated delta net whose state decays by another factor in
// each channel (arXiv:2510.26692).
type KimiDelta struct {
	Heads, Size int // heads, and elements of each head's query, key and value
	Kernel      int // of the convolution
}

// wide returns the width of all heads.
func (l KimiDelta) wide() int { return int(min(setting.FLOPs(l.Heads, l.Size), setting.MaxField/4)) }

// Keeps returns what a block keeps of a sequence.
func (l KimiDelta) Keeps() setting.CacheSpec {
	return setting.CacheSpec{Kind: setting.Recurrent, Mixer: "kda", Channels: setting.Product(3, l.wide()), Kernel: l.Kernel, StateHeads: l.Heads, HeadState: setting.Product(l.Size, l.Size)}
}

// KimiAttention is Kimi's delta attention in PyTorch's own operations, as transformers runs it without
// flash-linear-attention, whose kernels keep less (KimiLinearDeltaAttention of modeling_kimi_linear.py, 5.24).
type KimiAttention struct {
	Hidden int
	KimiDelta
}

// Kind names the row.
func (KimiAttention) Kind() string { return "KimiDeltaAttention" }

func (l KimiAttention) parts() tape.Sequential {
	wide := l.wide()
	linear := func(name string, in, out int) tape.Named {
		return tape.As(name, Linear{In: in, Out: out, NoBias: true})
	}
	return tape.Sequential{
		linear("q_proj", l.Hidden, wide), linear("k_proj", l.Hidden, wide), linear("v_proj", l.Hidden, wide),
		tape.As("conv1d", Conv1d{In: 3 * wide, Out: 3 * wide, Kernel: l.Kernel, Padding: l.Kernel - 1, Groups: 3 * wide, NoBias: true}),
		tape.As("forget_gate", forgetGate{l}), linear("b_proj", l.Hidden, l.Heads),
		linear("g_a_proj", l.Hidden, l.Size), linear("g_b_proj", l.Size, wide),
		tape.As("o_norm", sigmoidNorm{l.Size}), linear("o_proj", wide, l.Hidden),
	}
}

func (l KimiAttention) Declare(d *tape.Declaration) {
	d.Want("Heads", l.Heads, 1)
	d.Want("Size", l.Size, 1)
	d.Want("Kernel", l.Kernel, 1)
	l.parts().Declare(d)
}

func (l KimiAttention) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	f := tape.Flow{Tape: t, Parts: l.parts()}
	batch, length := x.Dim(0), x.Dim(1)
	mixed := f.Cat(2, f.Call("q_proj", x), f.Call("k_proj", x), f.Call("v_proj", x))
	y := f.Call("conv1d", f.Permute(mixed, 0, 2, 1))
	y = f.Apply(SiLU{}, f.Part(y, 2, length))
	decay := f.Call("forget_gate", x)
	beta := KeepOutput(t, f.Call("b_proj", x))
	y = l.rule(t, y, decay, beta)
	rows := []int{batch, length, l.Heads, l.Size}
	*outputGate.Of(t) = f.View(f.Call("g_b_proj", f.Call("g_a_proj", x)), rows...)
	y = f.Call("o_norm", f.View(y, rows...))
	return f.Call("o_proj", f.View(y, batch, length, l.wide()))
}

// rule is the delta rule by chunks, in float32 (chunk_kimi_delta_attention of transformers). Each operation here stands
// for several of PyTorch's, and lists what all of them keep.
func (l KimiAttention) rule(t *tape.Tape, y, decay, beta tape.Tensor) tape.Tensor {
	const c = deltaChunk
	batch, length, heads, size := decay.Dim(0), decay.Dim(1), l.Heads, l.Size
	chunks := (length + c - 1) / c
	padded := int(min(setting.FLOPs(chunks, c), setting.MaxField))
	kept := func(n int, last ...int) tape.Own {
		return tape.Own{Shape: append(alloc.Shape{batch, heads, n}, last...), DType: alloc.Float32}
	}
	mask, square, cube := tape.Own{Shape: alloc.Shape{c, c}, DType: alloc.Bool}, kept(chunks, c, c), kept(padded, c, size)
	// Queries and keys with their lengths, padded values and keys, and both times beta.
	keys := t.Op(tape.Op{
		In: []tape.Tensor{y, beta}, Shape: alloc.Shape{batch, heads, padded, size}, DType: alloc.Float32, KeepOutput: true, KeepOwn: []tape.Own{
			kept(length, size), kept(length), kept(length, size), kept(length), kept(padded, size), kept(padded), kept(padded, size), kept(padded, size),
		},
	})
	// The decay between any two tokens of a chunk in each channel, and the products of keys with it.
	decays := t.Op(tape.Op{In: []tape.Tensor{decay}, Shape: cube.Shape, KeepOutput: true, KeepOwn: []tape.Own{mask, mask}})
	scores := tape.Op{In: []tape.Tensor{keys, decays}, Shape: square.Shape, KeepOwn: []tape.Own{cube, kept(padded, size)}, FLOPs: setting.FLOPs(batch, heads, padded, c, size, 4)}
	// The triangular system is solved row by row; each step keeps copies of the row and of the square above it.
	rows := 0
	for i := 1; i < c; i++ {
		rows += i + i*i
	}
	scores.KeepOwn = append(scores.KeepOwn, kept(chunks, rows), square)
	// Values and keys of the solution, and the keys before it times the decay.
	solved := t.Op(tape.Op{In: []tape.Tensor{t.Op(scores), keys}, Shape: keys.Shape, KeepOwn: []tape.Own{kept(padded, size), kept(padded, size)}, FLOPs: setting.FLOPs(batch, heads, padded, c, size, 4)})
	// The scan keeps queries, keys and values of each chunk, and the state before it; from the second chunk on also what
	// multiplies that state.
	scan := tape.Op{
		In: []tape.Tensor{solved, keys, decays}, Shape: alloc.Shape{batch, length, heads * size}, DType: y.DType, FLOPs: setting.FLOPs(batch, heads, padded, c, size, 6),
		KeepOwn: []tape.Own{cube, mask, square, kept(padded, size), kept(padded, size), kept(padded, size), kept(chunks, size, size), kept(chunks, size)},
	}
	if later := padded - c; later > 0 {
		scan.KeepOwn = append(scan.KeepOwn, kept(later, size), kept(later, size), kept(later, size), kept(later, size))
	}
	return t.Op(scan)
}

// forgetGate makes the logarithm of the decay of each channel, in float32.
type forgetGate struct{ KimiAttention }

func (forgetGate) Kind() string { return "ForgetGate" }

func (l forgetGate) parts() (narrow, wide tape.Named) {
	return tape.As("f_a_proj", Linear{In: l.Hidden, Out: l.Size, NoBias: true}), tape.As("f_b_proj", Linear{In: l.Size, Out: l.wide(), NoBias: true})
}

func (l forgetGate) Declare(d *tape.Declaration) {
	narrow, wide := l.parts()
	d.Layer(narrow.Name, narrow.Layer)
	d.Layer(wide.Name, wide.Layer)
	d.Add(tape.Param{Name: "dt_bias", Shape: alloc.Shape{l.wide()}, DType: alloc.Float32})
	d.Param("A_log", 1, 1, l.Heads, 1)
}

// Forward records a softplus in elementary operations, times a rate for each head.
func (l forgetGate) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	narrow, wide := l.parts()
	y := t.Widen(t.Apply(wide, t.Apply(narrow, x)))
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, Params: true, PassGrad: true})
	grown := t.Scale(KeepOutput(t, y))
	logarithm := KeepInput(t, grown, false)
	y = t.Op(tape.Op{In: []tape.Tensor{logarithm, y}, Shape: y.Shape, KeepOwn: []tape.Own{{Shape: y.Shape, DType: alloc.Bool}}})
	rate := tape.Own{Shape: alloc.Shape{l.Heads}}
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, Params: true, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{rate, rate}})
}

// sigmoidNorm is an RMSNorm times the sigmoid of a gate, in float32.
type sigmoidNorm struct{ size int }

func (sigmoidNorm) Kind() string { return "RMSNormGated" }

func (l sigmoidNorm) Declare(d *tape.Declaration) { d.Param("weight", l.size) }

func (l sigmoidNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	low := x.DType
	gate := KeepOutput(t, t.Widen(*outputGate.Of(t)))
	y := RMSNorm{Size: l.size, Unfused: true}.Forward(t, t.Widen(x))
	if low.Bits() < 32 { // the weight in float32
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, InPlace: true, KeepOwn: []tape.Own{{Shape: alloc.Shape{l.size}}}})
	}
	return t.In(low, t.Mul(y, gate))
}
