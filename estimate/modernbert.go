package estimate

// modernBERT builds ModernBERT, which rotates queries and keys and attends within a window in most blocks.
func (c Transformer) modernBERT() []Layer {
	norm := LayerNorm{Size: c.Hidden, NoBias: true}
	blocks := stacked(c.Blocks, func(block int) int {
		if block == 0 {
			return -1 // without a norm before it
		}
		return int(c.kind(block))
	}, func(_, block int) Layer { return c.modernBlock(norm, block) })
	layers := []Layer{Named{"model", Sequential{
		Named{"embeddings", Sequential{Named{"tok_embeddings", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}}, Named{"norm", norm}, Named{"drop", c.dropout()}}},
		Named{"rotary_emb", frequencies{c.headSize() / 2, 2}},
		Named{"layers", blocks},
		Named{"final_norm", norm},
	}}}
	if c.NoHead {
		return layers
	}
	if c.Classes != 0 {
		layers = append(layers, inline{first{}})
	}
	layers = append(layers, Named{"head", Sequential{
		Named{"dense", Linear{In: c.Hidden, Out: c.Hidden, NoBias: true}}, Named{"act", GELU{}}, Named{"norm", norm},
	}})
	if c.Classes != 0 {
		return append(layers, Named{"drop", c.dropout()}, Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	decoder := Linear{In: c.Hidden, Out: c.Vocab, Split: ByColumns}
	if c.Tied {
		decoder.Tied = ".model.embeddings.tok_embeddings.weight"
	}
	return append(layers, Named{"decoder", decoder})
}

func (c Transformer) modernBlock(norm Layer, block int) Layer {
	attention := Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Packed: true, Rotary: true, Plain: c.Plain,
		rotations: 2, names: &attentionNames{packed: "Wqkv", out: "Wo"},
	}
	if c.kind(block)&Windowed != 0 {
		attention.window = c.Window
	}
	before := Sequential{Named{"attn_norm", norm}}
	if block == 0 {
		before = nil
	}
	return decoderBlock{Sequential{
		residual(append(before, Named{"attn", attention})...),
		residual(Named{"mlp_norm", norm}, Named{"mlp", GatedMLP{
			Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseGELU), Packed: true, names: &gatedNames{both: "Wi", down: "Wo"},
		}}),
	}}
}
