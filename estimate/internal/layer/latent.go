package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LatentAttention is the multi-head latent attention of DeepSeek V2 and V3, over (batch, length,
// hidden). Queries go through one narrow projection, keys and values together through another. A
// cache keeps only the output of the latter: KVRank + RopeSize elements for each token
// (arXiv:2405.04434, section 2.1).
//
// It runs flash attention, except on the CPU, where PyTorch has none for values whose size differs
// from the keys'.
type LatentAttention struct {
	Hidden, Heads int
	QueryRank     int // 0 means that queries have one projection only
	KVRank        int
	NopeSize      int  // elements of each head's query and key that do not rotate
	RopeSize      int  // elements that rotate; all heads share the keys' part
	ValueSize     int  // elements of a head's value
	Bias          bool // of the narrow projections, and of the output's
	Still         bool // nothing rotates, as in Kimi Linear
	Complex       bool // rotation multiplies complex numbers in float32, as in DeepSeek V2
	// Whole says that llama.cpp caches keys and values of all heads, as for other models. It does
	// so for files from before April 2025, whose kv_b is one tensor.
	Whole bool
	// Indexer selects the tokens that attention reads; nil means that it reads all.
	Indexer *Indexer
}

// Keeps returns what a block keeps of a sequence.
func (l LatentAttention) Keeps() setting.CacheSpec {
	if l.Whole {
		return setting.CacheSpec{Kind: setting.Full, KVHeads: l.Heads, HeadSize: l.NopeSize + l.RopeSize, ValueSize: l.ValueSize}
	}
	s := setting.CacheSpec{Kind: setting.Latent, Latent: l.KVRank + l.RopeSize}
	if l.Indexer != nil {
		s.Index = l.Indexer.Size
	}
	return s
}

// queries returns the layers that make the queries.
func (l LatentAttention) queries() []tape.Named {
	out := l.Heads * (l.NopeSize + l.RopeSize)
	if l.QueryRank == 0 {
		return []tape.Named{{Name: "q_proj", Layer: Linear{In: l.Hidden, Out: out, NoBias: true, Split: ByColumns}}}
	}
	return []tape.Named{
		{Name: "q_a_proj", Layer: Linear{In: l.Hidden, Out: l.QueryRank, NoBias: !l.Bias}},
		{Name: "q_a_layernorm", Layer: RMSNorm{Size: l.QueryRank, Unfused: true}},
		{Name: "q_b_proj", Layer: Linear{In: l.QueryRank, Out: out, NoBias: true, Split: ByColumns}},
	}
}

// wide returns the width of values and of the keys' part that does not rotate, over all heads.
func (l LatentAttention) wide() int { return l.Heads * (l.NopeSize + l.ValueSize) }

func (l LatentAttention) parts() (narrow, norm, wide, out tape.Named) {
	return tape.As("kv_a_proj_with_mqa", Linear{In: l.Hidden, Out: l.KVRank + l.RopeSize, NoBias: !l.Bias}),
		tape.As("kv_a_layernorm", RMSNorm{Size: l.KVRank, Unfused: true}),
		tape.As("kv_b_proj", Linear{In: l.KVRank, Out: l.wide(), NoBias: true, Split: ByColumns}),
		tape.As("o_proj", Linear{In: l.Heads * l.ValueSize, Out: l.Hidden, NoBias: !l.Bias, Split: ByRows})
}

func (l LatentAttention) Declare(d *tape.Declaration) {
	d.Want("Hidden", l.Hidden, 1)
	d.Want("Heads", l.Heads, 1)
	d.Want("QueryRank", l.QueryRank, 0)
	d.Want("KVRank", l.KVRank, 1)
	d.Want("NopeSize", l.NopeSize, 1)
	d.Want("RopeSize", l.RopeSize, 1)
	d.Want("ValueSize", l.ValueSize, 1)
	d.WantHeads(l.Heads, l.Heads)
	narrow, norm, wide, out := l.parts()
	for _, part := range append(l.queries(), narrow, norm, wide, out) {
		d.Layer(part.Name, part.Layer)
	}
	if l.Indexer != nil {
		d.Layer("indexer", l.indexer())
	}
}

func (l LatentAttention) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	Ran.Of(t).Unmeasured |= LatentAttentions
	q := x
	for _, part := range l.queries() {
		q = t.Apply(part, q)
	}
	narrow, norm, wide, out := l.parts()
	both := t.Apply(narrow, x)
	parts := t.Split(both, 2, l.KVRank, l.RopeSize)
	latent := t.Apply(norm, parts[0])
	rotatedQ, rotatedK := q, parts[1]
	if !l.Still {
		rotatedQ, rotatedK = l.rotate(t, q, l.Heads), l.rotate(t, parts[1], 1)
		rotatedQ = t.Op(tape.Op{In: []tape.Tensor{q, rotatedQ}, Shape: q.Shape}) // joined with the part that does not rotate
	}
	latent = t.View(latent, latent.Dim(0), 1, latent.Dim(1), latent.Dim(2)) // as a single head, as a cache would hold it
	kv := t.View(t.Apply(wide, latent), latent.Dim(0), latent.Dim(2), l.wide())
	heads := t.Split(kv, 2, l.Heads*l.NopeSize, l.Heads*l.ValueSize)
	k := t.Op(tape.Op{In: []tape.Tensor{heads[0], rotatedK}, Shape: q.Shape})
	if l.Indexer != nil {
		t.Call("indexer", l.indexer(), x)
	}
	y := l.attend(t, rotatedQ, k, heads[1])
	t.Hold(x, q, both, latent, rotatedK, kv) // variables of the code hold them
	return t.Apply(out, y)
}

// attend is attention for heads whose values may differ from their keys in size.
func (l LatentAttention) attend(t *tape.Tape, q, k, v tape.Tensor) tape.Tensor {
	size := l.NopeSize + l.RopeSize
	unfused := l.ValueSize != size && t.On() == setting.CPU
	var mask []tape.Own
	if l.Indexer != nil { // of the tokens that the indexer has not selected, converted to numbers
		mask = []tape.Own{{Shape: alloc.Shape{q.Dim(0), 1, q.Dim(1), Seen(t, k.Dim(1))}}}
	}
	y := Sdpa{Heads: l.Heads, Size: size, unfused: unfused, own: mask}.Attend(t, q, k, v)
	if unfused {
		return y
	}
	return t.Copy(y) // in the order of the heads, joined
}

// rotate rotates the heads' rotating part.
func (l LatentAttention) rotate(t *tape.Tape, x tape.Tensor, heads int) tape.Tensor {
	if l.Complex {
		return rotateComplex(t, x, heads, l.RopeSize)
	}
	return rotatePairs(t, x, heads, l.RopeSize, l.RopeSize)
}
