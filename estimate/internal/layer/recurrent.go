package layer

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type RNN nn.RNN

type LSTM nn.LSTM

type GRU nn.GRU

func (l RNN) Declare(d *tape.Declaration) { l.declare(d, 1) }

func (l LSTM) Declare(d *tape.Declaration) { RNN(l).declare(d, 4) }

func (l GRU) Declare(d *tape.Declaration) { RNN(l).declare(d, 3) }

// Forward records one state for each step, and the first two.
func (l RNN) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.forward(t, x, 1, 1, 1)
}

// Forward records four gates, the cell state and the output of each step.
func (l LSTM) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.On() == setting.CPU {
		return RNN(l).oneDNN(t, x)
	}
	return RNN(l).forward(t, x, 4, 6, 2)
}

// Forward records three gates, their inputs and the state of each step.
func (l GRU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return RNN(l).forward(t, x, 3, 7, 0)
}

func (l RNN) directions() int {
	if l.Bidirectional {
		return 2
	}
	return 1
}

func (l RNN) declare(d *tape.Declaration, gates int) {
	layers := setting.Or(l.Layers, 1)
	d.Want("In", l.In, 1)
	d.Want("Hidden", l.Hidden, 1)
	d.Want("Layers", layers, 1)
	if layers > tape.MaxLayers/8 {
		d.Failf("Layers is %d: want at most %d", layers, tape.MaxLayers/8)
	}
	in := l.In
	for i := range layers {
		for j := range l.directions() {
			suffix := fmt.Sprintf("_l%d", i)
			if j == 1 {
				suffix += "_reverse"
			}
			d.Param("weight_ih"+suffix, gates*l.Hidden, in)
			d.Param("weight_hh"+suffix, gates*l.Hidden, l.Hidden)
			if !l.NoBias {
				d.Param("bias_ih"+suffix, gates*l.Hidden)
				d.Param("bias_hh"+suffix, gates*l.Hidden)
			}
		}
		in = l.Hidden * l.directions()
	}
}

// fits fails if the layer does not take the input, and notes on the tape that a recurrent layer ran.
func (l RNN) fits(t *tape.Tape, x tape.Tensor) {
	t.Rank(x, 3, "(batch, length, features)")
	t.Width(x, 2, l.In, "features")
	Ran.Of(t).Recurrent = true
	if x.Shape[1] > setting.MaxField/8 {
		t.Failf("input %v is too long: want at most %d steps", x.Shape, setting.MaxField/8)
	}
}

// forward keeps for each layer and direction its input in the order of steps, states tensors for
// each step, and more tensors once.
func (l RNN) forward(t *tape.Tape, x tape.Tensor, gates, states, more int) tape.Tensor {
	l.fits(t, x)
	batch, length, directions := x.Shape[0], x.Shape[1], l.directions()
	for i := range setting.Or(l.Layers, 1) {
		in := x.Shape[2]
		var kept []tape.Own
		for j := range directions {
			// In a batch of one, the input already has the order of steps. Both directions of a
			// later layer read one tensor.
			if i == 0 && batch > 1 || i > 0 && j == 0 {
				kept = append(kept, tape.Own{Shape: alloc.Shape{length, batch, in}})
			}
			kept = append(kept, tape.Own{Shape: alloc.Shape{length*states + more, batch, l.Hidden}})
		}
		o := tape.Op{
			In: []tape.Tensor{x}, Shape: alloc.Shape{batch, length, l.Hidden * directions}, DType: t.Activation(), Params: true,
			KeepOwn: kept, FLOPs: setting.FLOPs(2*directions, batch, length, gates, l.Hidden, in+l.Hidden),
		}
		if i == 0 && batch == 1 {
			o.Keep = o.In
		}
		x = t.Op(o)
	}
	return x
}

// oneDNN is an LSTM as PyTorch runs it on the CPU: a kernel for each layer and
// direction, which keeps its input and output, the first and last states, and
// a workspace of its own.
func (l RNN) oneDNN(t *tape.Tape, x tape.Tensor) tape.Tensor {
	l.fits(t, x)
	if x.Shape[0] > 1 { // the kernel reads step by step
		x = t.Copy(x)
	}
	for range setting.Or(l.Layers, 1) {
		x = l.oneDNNLayer(t, x)
	}
	return x
}

func (l RNN) oneDNNLayer(t *tape.Tape, x tape.Tensor) tape.Tensor {
	batch, length, in := x.Shape[0], x.Shape[1], x.Shape[2]
	outputs := make([]tape.Tensor, l.directions())
	for i := range outputs {
		outputs[i] = t.Op(tape.Op{
			In: []tape.Tensor{x}, Shape: alloc.Shape{batch, length, l.Hidden}, DType: t.Activation(), Params: true,
			Keep: []tape.Tensor{x}, KeepOutput: true, KeepOwn: []tape.Own{l.workspace(batch, length), {Shape: alloc.Shape{4, batch, l.Hidden}}},
			Workspace: l.reordered(t, in), FLOPs: setting.FLOPs(2, batch, length, 4, l.Hidden, in+l.Hidden),
		})
	}
	if len(outputs) == 1 {
		return outputs[0]
	}
	return t.Cat(2, outputs...)
}

// workspace returns what the kernel keeps for all steps: the gates twice, three pairs of states and
// one more, in padded rows of float32 and whole pages. The sizes are within 1 % of what
// saved-tensor hooks show for ten shapes.
func (l RNN) workspace(batch, length int) tape.Own {
	gates, state := padded(4*l.Hidden, 64), padded(l.Hidden, 256)
	pages := (setting.FLOPs(4, batch, 2*length*gates+6*(length+1)*state+length*state)-1)/4096 + 1
	return tape.Own{Shape: alloc.Shape{int(min(pages, setting.MaxTotal/4096)), 4096}, DType: alloc.Uint8}
}

// padded returns the length of a row of n elements: whole cache lines of 16 elements, and one more
// line if rows of that length would collide in the cache.
func padded(n, collide int) int {
	n = (n + 15) / 16 * 16
	if n%collide == 0 {
		n += 16
	}
	return n
}

// reordered returns the memory of one direction's weights in the kernel's order.
func (l RNN) reordered(t *tape.Tape, in int) alloc.Bytes {
	weights, err := alloc.Shape{4 * l.Hidden, in + l.Hidden}.Bytes(t.Cfg.Weights)
	if err != nil || weights > setting.MaxTotal {
		return 0 // the declaration has already reported it
	}
	return weights
}

// DeltaNet holds the sizes of Qwen3-Next's linear attention, whose state does not grow with the
// text (arXiv:2412.06464).
type DeltaNet struct {
	KeyHeads, ValueHeads int  // ValueHeads is a multiple of KeyHeads
	KeySize, ValueSize   int  // elements of a head
	Kernel               int  // of the convolution; 0 means 4
	Apart                bool // the gates have their own projections, as in Qwen3.5
}

// deltaChunk is the number of tokens that are computed at once.
const deltaChunk = 64

// channels returns the channels of the convolution: those of queries, keys and values.
func (l DeltaNet) channels() int {
	return int(min(setting.AddSat(setting.FLOPs(2, l.KeyHeads, l.KeySize), setting.FLOPs(l.ValueHeads, l.ValueSize)), setting.MaxField))
}

// Keeps returns what a block keeps of a sequence.
func (l DeltaNet) Keeps() setting.CacheSpec {
	return setting.CacheSpec{
		Kind: setting.Recurrent, Mixer: "delta", Channels: l.channels(), Kernel: setting.Or(l.Kernel, 4),
		StateHeads: l.ValueHeads, HeadState: setting.Product(l.KeySize, l.ValueSize),
	}
}

// DeltaAttention is a gated delta net in PyTorch's own operations, as transformers runs it without
// flash-linear-attention, whose kernels keep less.
type DeltaAttention struct {
	Hidden int
	DeltaNet
}

func (DeltaAttention) Kind() string { return "GatedDeltaNet" }

// projections returns the projections of the convolution's input, of the output's gates and of the
// state's gates.
func (l DeltaAttention) projections() []tape.Named {
	n, wide, heads := min(l.channels(), setting.MaxField/2), int(min(setting.FLOPs(l.ValueHeads, l.ValueSize), setting.MaxField/2)), min(l.ValueHeads, setting.MaxField/2)
	linear := func(name string, out int) tape.Named {
		return tape.As(name, Linear{In: l.Hidden, Out: out, NoBias: true})
	}
	if l.Apart {
		return []tape.Named{linear("in_proj_qkv", n), linear("in_proj_z", wide), linear("in_proj_b", heads), linear("in_proj_a", heads)}
	}
	return []tape.Named{linear("in_proj_qkvz", n+wide), linear("in_proj_ba", 2*heads)}
}

func (l DeltaAttention) parts() (conv, out tape.Layer) {
	n := l.channels()
	wide := int(min(setting.FLOPs(l.ValueHeads, l.ValueSize), setting.MaxField/2))
	return Conv1d{In: n, Out: n, Kernel: setting.Or(l.Kernel, 4), Padding: setting.Or(l.Kernel, 4) - 1, Groups: n, NoBias: true},
		Linear{In: wide, Out: l.Hidden, NoBias: true}
}

func (l DeltaAttention) Declare(d *tape.Declaration) {
	d.Want("KeyHeads", l.KeyHeads, 1)
	d.Want("ValueHeads", l.ValueHeads, 1)
	d.Want("KeySize", l.KeySize, 1)
	d.Want("ValueSize", l.ValueSize, 1)
	if l.ValueHeads%l.KeyHeads != 0 {
		d.Failf("%d ValueHeads do not divide among %d KeyHeads", l.ValueHeads, l.KeyHeads)
	}
	conv, out := l.parts()
	d.Param("dt_bias", l.ValueHeads)
	d.Param("A_log", l.ValueHeads)
	d.Layer("conv1d", conv)
	for _, p := range l.projections() {
		d.Layer(p.Name, p.Layer)
	}
	d.Layer("norm", gatedNorm{l.ValueSize})
	d.Layer("out_proj", out)
}

func (l DeltaAttention) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Stepwise, Ran.Of(t).Recurrent = true, true
	conv, out := l.parts()
	batch, length := x.Shape[0], x.Shape[1]
	var projected []tape.Tensor
	for _, p := range l.projections() {
		y := t.Call(p.Name, p.Layer, x)
		projected = append(projected, y)
	}
	z, gates := projected[0], projected[1:]
	if l.Apart {
		z, gates = projected[1], projected[2:]
	}
	mixed := alloc.Shape{batch, l.channels(), length}
	y := t.Op(tape.Op{In: projected[:1], Shape: mixed, View: l.Apart})
	y = t.Call("conv1d", conv, y)
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: mixed, Keep: []tape.Tensor{y}})
	y = l.rule(t, y, gates, batch, length)
	rows := alloc.Shape{batch * length * l.ValueHeads, l.ValueSize}
	*outputGate.Of(t) = t.Op(tape.Op{In: []tape.Tensor{z}, Shape: rows, View: l.Apart})
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: rows, View: true})
	y = t.Call("norm", gatedNorm{l.ValueSize}, y)
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: alloc.Shape{batch, length, l.ValueHeads * l.ValueSize}, View: true})
	return t.Call("out_proj", out, y)
}

// rule is the gated delta rule by chunks, in float32 (torch_chunk_gated_delta_rule of
// transformers). Each operation here stands for several of PyTorch's, and lists what all of them
// keep.
func (l DeltaAttention) rule(t *tape.Tape, y tape.Tensor, from []tape.Tensor, batch, length int) tape.Tensor {
	const f = alloc.Float32
	heads, k, v := l.ValueHeads, l.KeySize, l.ValueSize
	chunks := (length + deltaChunk - 1) / deltaChunk
	padded := chunks * deltaChunk
	kept := func(n int, last ...int) tape.Own {
		return tape.Own{Shape: append(alloc.Shape{batch, heads, n}, last...), DType: f}
	}
	square := kept(chunks, deltaChunk, deltaChunk)
	one := tape.Own{Shape: alloc.Shape{heads}, DType: f}
	// The gates keep the sigmoid, and the softplus with its input.
	gates := t.Op(tape.Op{
		In: from, Shape: alloc.Shape{batch, length, heads}, DType: f, Params: true, KeepOutput: true,
		KeepOwn: []tape.Own{{Shape: alloc.Shape{batch, length, heads}, DType: y.DType}, kept(length), one, one},
	})
	// For each value head, queries and keys, their lengths, and padded copies.
	keys := t.Op(tape.Op{
		In: []tape.Tensor{y}, Shape: alloc.Shape{batch, heads, padded, k}, DType: f, KeepOutput: true,
		KeepOwn: []tape.Own{kept(length, k), kept(length), kept(length, k), kept(length), kept(padded, k)},
	})
	values := t.Op(tape.Op{
		In: []tape.Tensor{y, gates}, Shape: alloc.Shape{batch, heads, padded, v}, DType: f, KeepOutput: true,
		KeepOwn: []tape.Own{kept(padded), kept(padded, k), {Shape: alloc.Shape{deltaChunk, deltaChunk}, DType: alloc.Bool}},
	})
	// The decay, the products of keys with keys, and the solutions of the two linear systems.
	solved := t.Op(tape.Op{
		In: []tape.Tensor{keys, values, gates}, Shape: values.Shape, KeepOutput: true,
		KeepOwn: []tape.Own{square, square, square, square, kept(padded), kept(padded), kept(padded), kept(padded, k), kept(chunks)},
		FLOPs:   setting.FLOPs(batch, heads, padded, deltaChunk, 4*k+2*v),
	})
	// The scan keeps values, scores and keys of each chunk; from the second chunk on, also states,
	// queries and decayed keys.
	scan := tape.Op{
		In: []tape.Tensor{solved, keys}, Shape: alloc.Shape{batch, length, heads * v}, DType: y.DType,
		KeepOwn: []tape.Own{kept(padded, v), square, kept(padded, k), kept(chunks*k, v)}, FLOPs: setting.FLOPs(batch, heads, padded, k, v, 6),
	}
	if chunks > 1 {
		later := (chunks - 1) * deltaChunk
		scan.KeepOwn = append(scan.KeepOwn, kept(later, k), kept(later, k))
	}
	return t.Op(scan)
}

// gatedNorm is an RMSNorm times the SiLU of a gate, in float32.
type gatedNorm struct{ size int }

func (gatedNorm) Kind() string { return "RMSNormGated" }

func (l gatedNorm) Declare(d *tape.Declaration) { d.Param("weight", l.size) }

func (l gatedNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	gate := *outputGate.Of(t)
	d := x.DType
	y := RMSNorm{Size: l.size, Unfused: true}.Forward(t, x)
	gate = t.Widen(gate)
	gate = KeepInput(t, gate, false)
	y = t.Op(tape.Op{In: []tape.Tensor{y, gate}, Shape: y.Shape, DType: alloc.Float32, Keep: []tape.Tensor{y, gate}})
	return t.In(d, y)
}
