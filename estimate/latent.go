package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// LatentAttention is the multi-head latent attention of DeepSeek V2 and V3, over
// (batch, length, hidden): queries, and keys and values together, go through a
// narrow projection each. A cache keeps the latter's output, KVRank + RopeSize
// elements a token (arXiv:2405.04434, section 2.1).
//
// It runs flash attention, except on the CPU, where PyTorch has none for values of
// another size than keys.
type LatentAttention struct {
	Hidden, Heads int
	QueryRank     int // 0 projects queries at once
	KVRank        int
	NopeSize      int  // elements of a head's query and key that do not rotate
	RopeSize      int  // elements that rotate; those of the keys are the same in all heads
	ValueSize     int  // elements of a head's value
	Complex       bool // rotation is a product of complex numbers in float32, as in DeepSeek V2
}

// queries are the layers that make them.
func (l LatentAttention) queries() []Named {
	out := l.Heads * (l.NopeSize + l.RopeSize)
	if l.QueryRank == 0 {
		return []Named{{"q_proj", Linear{In: l.Hidden, Out: out, NoBias: true, Split: ByColumns}}}
	}
	return []Named{
		{"q_a_proj", Linear{In: l.Hidden, Out: l.QueryRank, NoBias: true}},
		{"q_a_layernorm", RMSNorm{Size: l.QueryRank, Unfused: true}},
		{"q_b_proj", Linear{In: l.QueryRank, Out: out, NoBias: true, Split: ByColumns}},
	}
}

func (l LatentAttention) parts() (narrow, norm, wide, out Named) {
	return Named{"kv_a_proj_with_mqa", Linear{In: l.Hidden, Out: l.KVRank + l.RopeSize, NoBias: true}},
		Named{"kv_a_layernorm", RMSNorm{Size: l.KVRank, Unfused: true}},
		Named{"kv_b_proj", Linear{In: l.KVRank, Out: l.Heads * (l.NopeSize + l.ValueSize), NoBias: true, Split: ByColumns}},
		Named{"o_proj", Linear{In: l.Heads * l.ValueSize, Out: l.Hidden, NoBias: true, Split: ByRows}}
}

// Declare implements Layer.
func (l LatentAttention) Declare(d *Declaration) {
	if !d.wantAll(setting{"Hidden", l.Hidden, 1}, setting{"Heads", l.Heads, 1}, setting{"QueryRank", l.QueryRank, 0},
		setting{"KVRank", l.KVRank, 1}, setting{"NopeSize", l.NopeSize, 1}, setting{"RopeSize", l.RopeSize, 1}, setting{"ValueSize", l.ValueSize, 1}) {
		return
	}
	narrow, norm, wide, out := l.parts()
	for _, part := range append(l.queries(), narrow, norm, wide, out) {
		d.Layer(part.Name, part.Layer)
	}
}

// Forward implements Layer.
func (l LatentAttention) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	t.unmeasured |= latentAttentions
	q, err := x, error(nil)
	for _, part := range l.queries() {
		if q, err = part.Forward(t, q); err != nil {
			return Tensor{}, err
		}
	}
	narrow, norm, wide, out := l.parts()
	both, err := narrow.Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	latent, err := view(t, both, l.KVRank)
	if err == nil {
		latent, err = norm.Forward(t, latent)
	}
	if err != nil {
		return Tensor{}, err
	}
	rotatedQ, err := l.rotate(t, q, l.Heads)
	if err != nil {
		return Tensor{}, err
	}
	rotatedK, err := l.rotate(t, both, 1)
	if err == nil {
		rotatedQ, err = t.Op(Op{In: []Tensor{q, rotatedQ}, Shape: q.Shape}) // joined with what does not rotate
	}
	if err != nil {
		return Tensor{}, err
	}
	flat := latent.Shape // and as a single head, which a cache would hold
	if latent, err = t.Op(Op{In: []Tensor{latent}, Shape: alloc.Shape{flat[0], 1, flat[1], flat[2]}, View: true}); err != nil {
		return Tensor{}, err
	}
	kv, err := wide.Forward(t, latent)
	if err == nil {
		kv, err = t.Op(Op{In: []Tensor{kv}, Shape: t.resized(flat, kv.Shape[3]), View: true})
	}
	if err != nil {
		return Tensor{}, err
	}
	k, err := t.Op(Op{In: []Tensor{kv, rotatedK}, Shape: q.Shape})
	if err != nil {
		return Tensor{}, err
	}
	v, err := view(t, kv, l.Heads*l.ValueSize)
	if err != nil {
		return Tensor{}, err
	}
	plain := l.ValueSize != l.NopeSize+l.RopeSize && t.On() == CPU
	y, err := attend(t, rotatedQ, k, v, l.Heads, l.NopeSize+l.RopeSize, plain, 0, nil, nil)
	if err == nil && !plain { // whose output is in the order of the joined heads
		y, err = t.Op(Op{In: []Tensor{y}, Shape: y.Shape})
	}
	for _, named := range []Tensor{x, q, both, latent, rotatedK, kv} { // by the code's variables
		t.hold(named)
	}
	if err != nil {
		return Tensor{}, err
	}
	return out.Forward(t, y)
}

// rotate turns the rotating part of so many heads.
func (l LatentAttention) rotate(t *Tape, x Tensor, heads int) (Tensor, error) {
	if l.Complex {
		return rotateComplex(t, x, heads, l.RopeSize)
	}
	return rotatePairs(t, x, heads, l.RopeSize, l.RopeSize)
}
