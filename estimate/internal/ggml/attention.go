package ggml

// Attention is attention over the keys and values in the cache (src/llama-graph.cpp, build_attn).
type Attention struct {
	Heads, KVHeads      int
	HeadSize, ValueSize int
	Packed              bool // one product makes queries, keys and values
	Gated               bool // the product of the queries has a gate too (Qwen3-Next)
	HeadGates           bool // a gate weighs each head (Step 3.5)
	Normed              bool // norms of queries and keys
	NormedValues        bool
	Rotates             bool
	Scaled              bool // queries are multiplied by a number
	Windowed            bool // it sees the cells of a window
	Borrows             bool // it uses the keys and values of another block
	NoProjection        bool
}

func (a Attention) build(b *builder, x *tensor) *tensor {
	queries, keys, values := a.Heads*a.HeadSize, a.KVHeads*a.HeadSize, a.KVHeads*a.ValueSize
	var q, k, v, gate *tensor
	switch {
	case a.Packed:
		all := b.product(queries+keys+values, x)
		q, k, v = part(all, b.row(queries)), part(all, b.row(keys)), part(all, b.row(values))
		if b.s.ApartHeads {
			q, k, v = view(op(q.size, q)), view(op(k.size, k)), view(op(v.size, v))
		}
	case a.Gated:
		both := b.product(2*queries, x)
		q, gate = part(both, b.row(queries)), part(both, b.row(queries))
	}
	if q == nil {
		q = view(b.product(queries, x))
	}
	if k == nil && !a.Borrows {
		k, v = view(b.product(keys, x)), view(b.product(values, x))
	}
	turn := func(t *tensor) *tensor {
		if a.Normed {
			t = over(t.size, over(t.size, t))
		}
		if a.Rotates {
			t = over(t.size, t, b.pos)
		}
		return t
	}
	if q = turn(q); a.Scaled {
		q = over(q.size, q)
	}
	if k != nil {
		k = turn(k)
	}
	if v != nil && a.NormedValues {
		v = over(v.size, v)
	}
	if v != nil && a.Packed && !b.s.Flash {
		v = op(v.size, v)
	}
	y := b.attend(a, q, k, v)
	if gate != nil {
		g := op(gate.size, gate)
		y = over(y.size, y, over(g.size, g))
	}
	if a.HeadGates {
		g := b.product(a.Heads, x)
		y = view(over(y.size, view(y), view(over(g.size, g))))
	}
	if a.NoProjection {
		return y
	}
	return b.product(b.Hidden, y)
}

// attend returns what attention with these queries, keys and values makes. Keys and values are nil where those of another
// block are used.
func (b *builder) attend(a Attention, q, k, v *tensor) *tensor {
	q, k, v = b.rotated(a, false, q), b.rotated(a, false, k), b.rotated(a, true, v)
	b.expand(q)
	toKeys, toValues := b.indexesOf(a.Windowed)
	for _, t := range []*tensor{v, k} {
		if t != nil {
			b.expand(t)
		}
	}
	if k != nil {
		b.expand(store(view(k), toKeys))
	}
	if v != nil {
		b.expand(store(view(v), toValues))
	}
	y := b.scored(a, view(view(q)), b.row(a.Heads*a.ValueSize))
	b.expand(y)
	return b.rotated(a, true, y)
}

// scored returns the values weighed by their scores.
func (b *builder) scored(a Attention, q *tensor, size int64) *tensor {
	mask := b.mask(a.Windowed)
	if b.s.Flash {
		return view(op(size, q, mask))
	}
	cells := b.s.Cells
	if a.Windowed {
		cells = b.s.WindowCells
	}
	scores := op(b.bytes(4, a.Heads, cells, b.s.Batch), q)
	scores = over(scores.size, scores, mask)
	return op(size, view(op(size, scores)))
}

// turn is a rotation of keys or values before they are quantized.
type turn struct {
	values, windowed bool
	side             int
}

// rotated returns keys and queries, or values, after the rotation that quantized ones get (src/llama-kv-cache.cpp,
// build_input_k_rot and build_input_v_rot).
func (b *builder) rotated(a Attention, values bool, t *tensor) *tensor {
	of, rotates, head := turn{values, a.Windowed, 64}, b.s.RotatedKeys, a.HeadSize
	if values {
		rotates, head = b.s.RotatedValues, a.ValueSize
	}
	if !rotates || t == nil || head%of.side != 0 {
		return t
	}
	for !values && head%(2*of.side) == 0 {
		of.side *= 2
	}
	if b.turns[of] == nil {
		b.turns[of] = b.input(b.bytes(4, of.side, of.side))
	}
	return view(op(t.size, b.turns[of], view(t)))
}

// Latent is multi-head latent attention (src/models/deepseek2.cpp).
type Latent struct {
	Heads, QueryRank, KVRank  int
	NopeSize, RopeSize, Value int
	Still                     bool // nothing rotates (Kimi Linear)
	Whole                     bool // keys and values of all heads are stored, not the latent
	Index                     Index
}

func (l Latent) build(b *builder, x *tensor) *tensor {
	q := x
	if l.QueryRank > 0 {
		q = b.normed(b.product(l.QueryRank, x))
	}
	selected := l.Index.selected(b, l.RopeSize, x, q)
	q = b.product(l.Heads*(l.NopeSize+l.RopeSize), q)
	both := b.product(l.KVRank+l.RopeSize, x)
	nope, rope := part(q, b.row(l.Heads*l.NopeSize)), part(q, b.row(l.Heads*l.RopeSize))
	if !l.Whole {
		absorbed := view(op(b.row(l.Heads*l.KVRank), view(nope)))
		turn := func(t *tensor) *tensor {
			if l.Still {
				return t
			}
			return over(t.size, t, b.pos)
		}
		turned := turn(rope)
		q = op(b.row(l.Heads*(l.KVRank+l.RopeSize)), absorbed, turned)
		latent := view(b.normed(part(both, b.row(l.KVRank))))
		k := op(b.row(l.KVRank+l.RopeSize), latent, turn(part(both, b.row(l.RopeSize))))
		b.expand(q, latent, k)
		toKeys, _ := b.indexesOf(false)
		b.expand(store(view(k), toKeys))
		a := Attention{Heads: l.Heads}
		mask := b.mask(false)
		if selected != nil {
			mask = l.Index.masked(b, mask, selected)
		}
		y := b.decompressed(a, l, view(view(q)), mask)
		b.expand(y)
		return b.product(b.Hidden, y)
	}
	latent := b.normed(part(both, b.row(l.KVRank)))
	kv := b.product(l.Heads*(l.NopeSize+l.Value), latent)
	v := op(b.row(l.Heads*l.Value), part(kv, b.row(l.Heads*l.Value)))
	turned := over(b.row(l.RopeSize), part(both, b.row(l.RopeSize)), b.pos)
	k := op(b.row(l.Heads*(l.NopeSize+l.RopeSize)), part(kv, b.row(l.Heads*l.NopeSize)), op(b.row(l.Heads*l.RopeSize), turned))
	q = over(q.size, view(q), b.pos)
	y := b.attend(Attention{Heads: l.Heads, HeadSize: l.NopeSize + l.RopeSize, ValueSize: l.Value}, q, k, v)
	return b.product(b.Hidden, y)
}

// decompressed returns the values of all heads from weighed latents.
func (b *builder) decompressed(a Attention, l Latent, q, mask *tensor) *tensor {
	values, narrow := b.row(l.Heads*l.KVRank), b.row(l.Heads*l.Value)
	if b.s.Flash {
		y := op(narrow, view(op(values, q, mask)))
		return view(op(narrow, view(y)))
	}
	scores := op(b.bytes(4, a.Heads, b.s.Cells, b.s.Batch), q)
	scores = over(scores.size, scores, mask)
	transposed := op(b.bytes(2, l.KVRank, b.s.Cells, b.s.Streams), &tensor{outside: true}) // float16
	y := op(narrow, op(values, transposed, scores))
	return op(narrow, view(y))
}
