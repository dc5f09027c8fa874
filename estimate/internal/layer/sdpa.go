package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Sdpa is scaled_dot_product_attention over (batch, length, heads x size), whose values may have
// another size.
type Sdpa struct {
	Heads, Size int
	plain       bool // the scores are held in memory
	unfused     bool // PyTorch has no kernel for it
	dropout     float64
	masks       []tape.Tensor // masks that others read too
	own         []tape.Own    // a mask that the operation makes
}

func (l Sdpa) Attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	q = t.Lower(q)
	k = t.Lower(k)
	v = t.Lower(v)
	scores := alloc.Shape{q.Dim(0), l.Heads, q.Dim(1), Seen(t, k.Dim(1))}
	out := t.Resized(q.Shape, l.Heads*(v.Dim(2)/max(1, k.Dim(2)/l.Size)))
	trained := len(l.masks) > 0 && l.masks[0].NeedsGrad() // flash attention cannot train a mask
	if l.plain = l.plain || t.Cfg.Kernel == setting.EagerAttention; l.plain || l.unfused || (l.dropout > 0 || trained) && t.On() == setting.CPU {
		return l.math(t, q, k, v, scores, out)
	}
	kept := append([]tape.Tensor{q, k, v}, l.masks...)
	blocks, more := flashBlocks(t, q.DType, scores, l.Size)
	return t.Op(tape.Op{
		In: kept, Shape: out, Keep: kept, KeepOutput: true,
		KeepOwn: append(l.own, tape.Own{Shape: scores[:3], DType: alloc.Float32}), FLOPs: setting.Flops(scores, l.Size, 4),
		As: tape.Attention, Workspace: blocks, BackwardWorkspace: more,
	})
}

// flashBlocks returns the memory in which each thread of the CPU's kernel computes a block of scores, in float32 and once
// more in a narrower type, and how much more the backward pass takes, which has the gradients of the scores beside them
// (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, cpu_flash_attention and cpu_flash_attention_backward).
func flashBlocks(t *tape.Tape, d alloc.DType, scores alloc.Shape, size int) (forward, more alloc.Bytes) {
	if t.On() != setting.CPU {
		return 0, 0
	}
	queries, keys := 32, min(scores[3], 512)
	switch {
	case scores[2] >= 768:
		queries = 256
	case scores[2] >= 192:
		queries = 64
	}
	queries = min(queries, scores[2])
	narrow := 0
	if d.Bits() < 32 {
		narrow = d.Bits() / 8
	}
	n := setting.AddSat(setting.FLOPs(setting.OneDNNThreads, queries, keys+2+size, 4), setting.FLOPs(setting.OneDNNThreads, queries, keys, narrow))
	back := setting.FLOPs(setting.OneDNNThreads, queries, keys, 2, 4+narrow)
	forward = alloc.Bytes(min(n, setting.MaxTotal))
	return forward, max(0, alloc.Bytes(min(back, setting.MaxTotal))-forward)
}

// math is PyTorch's form without a kernel of its own, which computes in float32
// (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math). Other
// attention that holds its scores does the same in the type of activations.
func (l Sdpa) math(t *tape.Tape, q, k, v tape.Tensor, scores, out alloc.Shape) tape.Tensor {
	low := q.DType
	if !l.plain {
		q = t.Widen(q)
		k = t.Widen(k)
		v = t.Widen(v)
	}
	repeated := alloc.Shape{k.Dim(0), scores[3], q.Dim(2)} // for each query head of the group
	q = t.Scale(q)
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: repeated})
	s := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, l.Size, 2)})
	if len(l.masks) > 0 {
		s = t.Op(tape.Op{In: append([]tape.Tensor{s}, l.masks...), Shape: scores, InPlace: true, PassGrad: true})
	}
	s = keepSoftmax(t, s)
	if l.dropout > 0 {
		s = t.Apply(Dropout{P: l.dropout}, s)
	}
	s = t.Lower(s)
	// Values are made contiguous, unless they are already, as for a single sequence.
	contiguous := scores[0] == 1 && slices.Equal(v.Shape, repeated)
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: t.Resized(out, scores[3], out[2]), View: contiguous})
	y := t.Op(tape.Op{In: []tape.Tensor{s, v}, Shape: out, Keep: []tape.Tensor{s, v}, FLOPs: setting.Flops(scores, l.Size, 2)})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: out, DType: low}) // heads and length are swapped back
}

// Uncached says that attention does not read keys and values of earlier tokens, as in an encoder.
var Uncached tape.Slot[bool]

// Encode runs an encoder within a model, such as a tower for images. It reads no cached keys and
// values, and has rotary tables and masks of its own, which live until it returns.
func Encode(t *tape.Tape, run func() tape.Tensor) tape.Tensor {
	uncached, rotary, masking := *Uncached.Of(t), *rotaryTables.Of(t), *masks.Of(t)
	*Uncached.Of(t), *rotaryTables.Of(t), *masks.Of(t) = true, nil, mask{}
	y := run()
	t.Hold(append(rotaryTables.Of(t).Lasting(), masks.Of(t).Lasting()...)...)
	*Uncached.Of(t), *rotaryTables.Of(t), *masks.Of(t) = uncached, rotary, masking
	return y
}

// Seen returns the number of keys that attention reads: the new ones and those in the cache.
func Seen(t *tape.Tape, keys int) int {
	if t.Cfg.Cache == nil || *Uncached.Of(t) {
		return keys
	}
	return max(keys, t.Cfg.Cache.ContextLength)
}

// kernel records attention by scaled_dot_product_attention. With a mask, and before PyTorch 2.5,
// keys and values are repeated for each query head of their group; a mask is converted to numbers,
// which are kept (transformers, integrations/sdpa_attention.py).
func (l Attention) kernel(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	batch, length := q.Shape[0], q.Shape[1]
	var shared []tape.Tensor
	var mask []tape.Own
	switch seen := Seen(t, k.Shape[1]); {
	case l.Biased:
		makeMask(t, 1, batch*l.Heads, length, seen)
		shared = []tape.Tensor{masks.Of(t).of}
	case l.Zeros:
		shared = []tape.Tensor{zeros(t, l.Heads, length, seen)}
	case l.Bias != nil:
		biases := l.Bias.add(t, l.Heads, length, seen)
		shared = []tape.Tensor{biases}
	case t.Cfg.Kernel == setting.FlashAttention: // it takes windows and lengths of sequences as arguments
	case l.Packs:
		makeMask(t, 1, 1, length, seen)
		shared = []tape.Tensor{masks.Of(t).of}
	case l.Numbers:
		shared = t.AllBeside()
		if len(shared) == 0 {
			t.Failf("there is no mask beside its input")
		}
		shared = shared[len(shared)-1:]
		k, v = l.repeated(t, q, k, v)
	case l.Masked:
		mask = []tape.Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
		k, v = l.repeated(t, q, k, v)
	case l.Window > 0 && seen >= l.Window: // masking_utils.py leaves the mask out below
		mask = []tape.Own{{Shape: alloc.Shape{batch, 1, length, seen}}}
		k, v = l.repeated(t, q, k, v)
	case t.Cfg.Release.Before(2, 5):
		k, v = l.repeated(t, q, k, v)
	}
	return Sdpa{Heads: l.Heads, Size: l.Size(), plain: l.Plain, dropout: l.Dropout, masks: shared, own: mask}.Attend(t, q, k, v)
}

// madeZeros holds the zeros that the first layer makes, and that later layers add too. Checkpoints of these hold them, and
// they then need a gradient (T5Attention.forward, of transformers 5.24.0).
var madeZeros tape.Slot[tape.Tensor]

// zeros returns zeros to add to the scores.
func zeros(t *tape.Tape, heads, length, keys int) tape.Tensor {
	made, shape := madeZeros.Of(t), alloc.Shape{1, heads, length, keys}
	if !slices.Equal(made.Shape, shape) {
		*made = t.Op(tape.Op{In: []tape.Tensor{t.Const(t.Activation())}, Shape: shape, Params: t.Inside()})
	}
	return *made
}

// repeated returns keys and values repeated for each query head of their group. A single head is
// broadcast, not copied.
func (l Attention) repeated(t *tape.Tape, q, k, v tape.Tensor) (tape.Tensor, tape.Tensor) {
	if l.Plain || slices.Equal(k.Shape, q.Shape) || setting.Or(l.KVHeads, l.Heads) == 1 {
		return k, v
	}
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: t.Resized(q.Shape, k.Shape[1], q.Shape[2])})
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: k.Shape})
	return k, v
}

// batched is attention as Bloom writes it: the positions' biases are added to the scores, and
// queries, keys and values are copied.
func batched(t *tape.Tape, q, k, v tape.Tensor, heads, size int, dropout float64) tape.Tensor {
	scores := alloc.Shape{q.Dim(0), heads, q.Dim(1), Seen(t, k.Dim(1))}
	for _, x := range []*tape.Tensor{&q, &k, &v} {
		*x = t.Op(tape.Op{In: []tape.Tensor{*x}, Shape: t.Resized(q.Shape, x.Dim(1), q.Dim(2))})
	}
	makeMask(t, 1, scores[0], scores[2], scores[3])
	added := []tape.Tensor{q, k}
	if biases := *biasesOfKeys.Of(t); biases.Shape != nil {
		added = append(added, biases)
	}
	s := t.Op(tape.Op{In: added, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, size, 2)})
	s = softmax(t, t.Op(tape.Op{In: []tape.Tensor{s, masks.Of(t).of}, Shape: scores, PassGrad: true}), q.DType)
	if dropout > 0 {
		s = t.Apply(Dropout{P: dropout}, s)
	}
	y := t.Op(tape.Op{In: []tape.Tensor{s, v}, Shape: q.Shape, Keep: []tape.Tensor{s, v}, FLOPs: setting.Flops(scores, size, 2)})
	return t.Copy(y)
}

// BatchedMasks makes what Batched attention of all layers adds to the scores: a mask, and a bias for each head and key.
// Checkpoints of the layers hold both for the second run (BloomModel.forward, of transformers 5.24.0).
type BatchedMasks struct{ Heads int }

func (l BatchedMasks) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	batch, length := x.Dim(0), x.Dim(1)
	keys := Seen(t, length)
	numbers := []tape.Tensor{t.Const(t.Activation(), keys)}
	*biasesOfKeys.Of(t) = t.Op(tape.Op{In: numbers, Shape: alloc.Shape{setting.Product(batch, l.Heads), 1, keys}})
	masks.Of(t).of = t.Op(tape.Op{In: numbers, Shape: alloc.Shape{1, batch, length, keys}})
	return x
}

// biasesOfKeys holds the biases that BatchedMasks made.
var biasesOfKeys tape.Slot[tape.Tensor]

// ScaledDotProduct is scaled_dot_product_attention of (batch, length, heads x size) tensors.
func ScaledDotProduct(t *tape.Tape, q, k, v tape.Tensor, heads, size int) tape.Tensor {
	if len(q.Shape) != 3 || len(k.Shape) != 3 || len(v.Shape) != 3 || heads < 1 || size < 1 {
		t.Failf("attention of %v, %v and %v with %d heads of %d: want (batch, length, heads x size)", q.Shape, k.Shape, v.Shape, heads, size)
	}
	return Sdpa{Heads: heads, Size: size}.Attend(t, q, k, v)
}

// eager is attention in elementary operations, as transformers writes it for models that no kernel
// of PyTorch serves.
type eager struct {
	heads, size int
	masks       int // number of kinds of layers with different masks
	dropout     float64
	capped      bool
	sinks       bool
	narrow      bool // the softmax is in the type of activations
}

func (l eager) attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	seen := Seen(t, k.Dim(1))
	wide := alloc.Shape{k.Dim(0), seen, q.Dim(2)}
	alone := k.Dim(2) == q.Dim(2)   // each query head has its own keys and values
	names := []tape.Tensor{q, k, v} // tensors that variables of the code hold
	k = t.Op(tape.Op{In: []tape.Tensor{k}, Shape: wide, View: alone})
	v = t.Op(tape.Op{In: []tape.Tensor{v}, Shape: wide, View: alone})
	makeMask(t, l.masks, q.Dim(0), q.Dim(1), seen)
	lowQ := t.Lower(q)
	k = t.Lower(k)
	s := l.weights(t, lowQ, k, q.DType)
	lowS := t.Lower(s)
	v = t.Lower(v)
	y := t.Op(tape.Op{In: []tape.Tensor{lowS, v}, Shape: q.Shape, Keep: []tape.Tensor{lowS, v}, FLOPs: setting.Flops(s.Shape, l.size, 2)})
	y = t.Copy(y) // heads and length are swapped back
	t.Hold(append(names, k, v, s)...)
	*EagerWeights.Of(t) = s
	return y
}

// weights returns the softmax of the scores, in an element type.
func (l eager) weights(t *tape.Tape, q, k tape.Tensor, d alloc.DType) tape.Tensor {
	scores := alloc.Shape{q.Dim(0), l.heads, q.Dim(1), k.Dim(1)}
	s := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: scores, Keep: []tape.Tensor{q, k}, FLOPs: setting.Flops(scores, l.size, 2)})
	s = t.Scale(s)
	if l.capped {
		s = t.Op(tape.Op{In: []tape.Tensor{t.Scale(s)}, Shape: scores, KeepOutput: true})
		s = t.Scale(s)
	}
	s = t.Op(tape.Op{In: []tape.Tensor{s, masks.Of(t).of}, Shape: scores, PassGrad: true})
	switch {
	case l.sinks:
		s = l.sunk(t, s)
	case l.narrow:
		s = keepSoftmax(t, s)
	default:
		s = softmax(t, s, d)
	}
	if l.dropout > 0 {
		s = t.Apply(Dropout{P: l.dropout}, s)
	}
	return s
}

// softmax computes a softmax in float32 and rounds it to an element type.
func softmax(t *tape.Tape, s tape.Tensor, d alloc.DType) tape.Tensor {
	o := tape.Op{In: []tape.Tensor{s}, Shape: s.Shape, KeepOutput: true, DType: alloc.Float32}
	copied, _ := s.Shape.Bytes(alloc.Float32) // the operation reports an overflow
	copied = min(copied, setting.MaxTotal)
	if t.On() == setting.CUDA { // like keepSoftmax
		o.BackwardWorkspace = copied
	}
	if d.Bits() >= 32 {
		return t.Op(o)
	}
	o.Workspace = copied
	return t.Op(tape.Op{In: []tape.Tensor{t.Op(o)}, Shape: s.Shape, DType: d})
}

// sunk returns the softmax over scores and sinks together, after the largest was subtracted,
// without the sinks' part.
func (l eager) sunk(t *tape.Tape, scores tape.Tensor) tape.Tensor {
	joined := t.Resized(scores.Shape, scores.Dim(-1)+1)
	s := t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: joined, Params: true})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOwn: []tape.Own{{Shape: t.Resized(scores.Shape, 1), DType: alloc.Int64}}})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: joined, KeepOutput: true})
	s = t.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores.Shape, View: true})
	t.Hold(scores)
	return s
}

// mask is added to the scores of attention. All layers share it, and it lives as long as the model
// runs.
type mask struct{ of tape.Tensor }

// Lasting returns the mask.
func (m *mask) Lasting() []tape.Tensor { return []tape.Tensor{m.of} }

var masks tape.Slot[mask]

// EagerWeights holds the weights that eager attention returned last, which a block's code may keep
// in a variable.
var EagerWeights tape.Slot[tape.Tensor]

// makeMask makes the masks for all kinds of layers, if they are not there yet.
func makeMask(t *tape.Tape, kinds, batch, length, keys int) {
	shape := alloc.Shape{kinds, batch, length, keys}
	if !slices.Equal(masks.Of(t).of.Shape, shape) {
		masks.Of(t).of = t.Const(t.Activation(), shape...)
	}
}

// rotate rotates queries or keys by their positions: x cos + rotate_half(x) sin. Only the tables
// are kept, and all layers share them.
func rotate(t *tape.Tape, x tape.Tensor, size, rotated, kinds int, tables alloc.DType) tape.Tensor {
	cos, sin := rotary(t, x.Shape[1], rotated, kinds, tables)
	part := t.Resized(x.Shape, x.Shape[2]/size*rotated)
	product := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: part, DType: tables, Keep: []tape.Tensor{cos}})
	half := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: part})
	half = t.Op(tape.Op{In: []tape.Tensor{half, sin}, Shape: part, DType: tables, Keep: []tape.Tensor{sin}})
	y := t.Op(tape.Op{In: []tape.Tensor{product, half}, Shape: part, PassGrad: true})
	if tables != 0 && x.DType != tables { // the sum is then rounded from the tables' type
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: part, DType: x.DType})
	}
	if rotated == size {
		return y
	}
	return t.Op(tape.Op{In: []tape.Tensor{y, x}, Shape: x.Shape})
}

// tables holds the cosines and sines of rotary positions, for each width of heads. All layers share
// them, and they live as long as the model runs.
type tables []*table

type table struct{ cos, sin tape.Tensor }

// Lasting returns all tables.
func (r *tables) Lasting() []tape.Tensor {
	var all []tape.Tensor
	for _, one := range *r {
		all = append(all, one.cos, one.sin)
	}
	return all
}

// of returns the table of a shape and type. A new one has no cosines yet.
func (r *tables) of(shape alloc.Shape, d alloc.DType) *table {
	for _, one := range *r {
		if slices.Equal(one.cos.Shape, shape) && one.cos.DType == d {
			return one
		}
	}
	*r = append(*r, &table{})
	return (*r)[len(*r)-1]
}

var rotaryTables tape.Slot[tables]

// rotary returns the tables for heads of one width, which the first such layer makes. Some models
// have several kinds of layers with different tables; these are all made at once.
func rotary(t *tape.Tape, length, size, kinds int, d alloc.DType) (cos, sin tape.Tensor) {
	d = setting.Or(d, t.Activation())
	shape := alloc.Shape{kinds, 1, length, size}
	r := rotaryTables.Of(t).of(shape, d)
	if r.cos.Shape != nil {
		return r.cos, r.sin
	}
	r.cos = t.Const(d, shape...)
	r.sin = t.Const(d, shape...)
	return r.cos, r.sin
}

// rotatePairs rotates the first size elements of each head by their position, in pairs. table is
// the width of the tables.
func rotatePairs(t *tape.Tape, x tape.Tensor, heads, size, table int) tape.Tensor {
	cos, sin := rotary(t, x.Shape[1], table, 1, 0)
	half := t.Resized(x.Shape, heads*size/2)
	var halves [2]tape.Tensor
	for i := range halves {
		a := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: half, Keep: []tape.Tensor{cos}})
		b := t.Op(tape.Op{In: []tape.Tensor{x, sin}, Shape: half, Keep: []tape.Tensor{sin}})
		halves[i] = t.Op(tape.Op{In: []tape.Tensor{a, b}, Shape: half, PassGrad: true})
	}
	return t.Op(tape.Op{In: halves[:], Shape: t.Resized(x.Shape, heads*size), PassGrad: true})
}

// rotateComplex rotates the first size elements of each head as complex numbers in float32, by one
// table.
func rotateComplex(t *tape.Tape, x tape.Tensor, heads, size int) tape.Tensor {
	shape := t.Resized(x.Shape, heads*size)
	wide := alloc.Shape{1, 1, x.Shape[1], size}
	r := rotaryTables.Of(t).of(wide, alloc.Float32)
	if r.cos.Shape == nil {
		r.cos = t.Const(alloc.Float32, wide...) // half as many numbers, of eight bytes each
	}
	y := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, DType: alloc.Float32})
	y = t.Op(tape.Op{In: []tape.Tensor{y, r.cos}, Shape: shape, Keep: []tape.Tensor{r.cos}})
	return t.In(x.DType, y)
}
