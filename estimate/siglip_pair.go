package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// siglipPair builds SigLIP, whose image tower has an attention with a learned query at its end.
func (c Transformer) siglipPair() []Layer {
	image := c.images()
	side := min(image.side(), maxField)
	one := alloc.Shape{1}
	return []Layer{inline{contrast{
		text: Sequential{
			Named{"embeddings", Sequential{
				Named{"token_embedding", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
				Named{"position_embedding", positions{Num: c.Positions, Dim: c.Hidden, buffered: true}},
			}},
			Named{"encoder.layers", Repeat{N: c.Blocks, Layer: c.clipBlock(UseGELUTanh)}},
			Named{"final_layer_norm", LayerNorm{Size: c.Hidden}},
			inline{first{}},
			Named{"head", Linear{In: c.Hidden, Out: image.Hidden}},
		},
		image: Sequential{
			Named{"embeddings", Sequential{
				Named{"patch_embedding", image.patchConv(false)},
				inline{flatPatches{}},
				Named{"position_embedding", positions{Num: int(min(FLOPs(side, side), maxField)), Dim: image.Hidden, buffered: true}},
			}},
			Named{"encoder.layers", Repeat{N: image.Blocks, Layer: image.clipBlock(UseGELUTanh)}},
			Named{"post_layernorm", LayerNorm{Size: image.Hidden}},
			Named{"head", probe{image}},
		},
		scalars: []Param{{Name: "logit_scale", Shape: one}, {Name: "logit_bias", Shape: one}},
	}}}
}

// probe is nn.MultiheadAttention with a learned query over all places, a norm and an MLP.
type probe struct{ c Transformer }

// Kind names the row.
func (probe) Kind() string { return "AttentionPooling" }

// Declare implements Layer.
func (l probe) Declare(d *Declaration) {
	n := l.c.Hidden
	d.Param("probe", 1, 1, n)
	d.Param("attention.in_proj_weight", 3*min(n, maxField/3), n)
	d.Param("attention.in_proj_bias", 3*min(n, maxField/3))
	d.Layer("attention.out_proj", Linear{In: n, Out: n})
	d.Layer("layernorm", LayerNorm{Size: n})
	d.Layer("mlp", l.mlp())
}

func (l probe) mlp() Layer {
	return MLP{Hidden: l.c.Hidden, FFN: l.c.FFN, Activation: or(l.c.Activation, UseGELUTanh)}
}

// Forward implements Layer.
func (l probe) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	batch, length, n := x.Shape[0], x.Shape[1], x.Shape[2]
	heads := max(1, l.c.Heads)
	query := alloc.Shape{batch, 1, n}
	// The query's copies and the query; keys and values together; the scores; the output.
	q, err := t.Op(Op{In: []Tensor{x}, Shape: query, Params: true, KeepOwn: []Own{{Shape: query}}})
	if err != nil {
		return Tensor{}, err
	}
	kv, err := t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{2, batch, length, n}, Params: true, Keep: []Tensor{x}, FLOPs: FLOPs(batch, length, n, n, 4)})
	if err != nil {
		return Tensor{}, err
	}
	scores, err := t.Op(Op{In: []Tensor{q, kv}, Shape: alloc.Shape{batch, heads, 1, length}, Keep: []Tensor{q, kv}, KeepOutput: true})
	if err != nil {
		return Tensor{}, err
	}
	y, err := t.Op(Op{In: []Tensor{scores, kv}, Shape: query, Keep: []Tensor{kv, scores}})
	if err == nil {
		y, err = t.Call("attention.out_proj", Linear{In: n, Out: n}, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	z, err := t.Call("layernorm", LayerNorm{Size: n}, y)
	if err == nil {
		z, err = t.Call("mlp", l.mlp(), z)
	}
	if err == nil {
		z, err = add(t, y, z)
	}
	if err != nil {
		return Tensor{}, err
	}
	return first{}.Forward(t, z)
}
