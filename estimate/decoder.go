package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// decoder builds the layers of Llama, Gemma, Phi and Phi3.
func (c Transformer) decoder() []Layer {
	body := Sequential{Named{"embed_tokens", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}}}
	norm, last := c.norm(), "norm"
	if c.Family == Phi {
		body = append(body, Named{"embed_dropout", c.dropout()})
		last = "final_layernorm"
	}
	if c.Family == Gemma {
		body = append(body, Named{"embed_scale", scale{}})
	}
	body = append(body, Named{"rotary_emb", frequencies{c.rotated() / 2}}, Named{"layers", Repeat{N: c.Blocks, Layer: c.decoderBlock()}}, Named{last, norm})
	layers := []Layer{Named{"model", body}}
	if !c.NoHead {
		head := Linear{In: c.Hidden, Out: c.Vocab, NoBias: c.Family != Phi, Split: ByColumns}
		if c.Tied {
			head.Tied = "model.embed_tokens.weight"
		}
		layers = append(layers, Named{"lm_head", head})
	}
	return layers
}

func (c Transformer) norm() Layer {
	if c.Family == Phi {
		return LayerNorm{Size: c.Hidden}
	}
	return RMSNorm{Size: c.Hidden, Unfused: true, Shifted: c.Family == Gemma}
}

// scale multiplies by a constant, as Gemma does with its embeddings.
type scale struct{}

// Declare implements Layer.
func (scale) Declare(d *Declaration) {
	d.Add(Param{Name: "factor", Shape: alloc.Shape{}, DType: alloc.Float32, Buffer: true})
}

// Forward implements Layer.
func (scale) Forward(t *Tape, x Tensor) (Tensor, error) {
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
}

// frequencies holds the buffers of the rotary positions.
type frequencies struct{ n int }

// Kind names the row.
func (frequencies) Kind() string { return "RotaryEmbedding" }

// Declare implements Layer.
func (l frequencies) Declare(d *Declaration) {
	for _, name := range []string{"inv_freq", "original_inv_freq"} {
		d.Add(Param{Name: name, Shape: alloc.Shape{l.n}, DType: alloc.Float32, Buffer: true})
	}
}

// Forward implements Layer.
func (frequencies) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }

// rotated is the number of elements of a head that rotate.
func (c Transformer) rotated() int {
	if c.RotaryDim == 0 && c.Family == Phi {
		return c.headSize() / 2
	}
	return or(c.RotaryDim, c.headSize())
}

// decoderBlock is one block of a decoder; its parts are made once for all blocks.
type decoderBlock struct {
	family                        Family
	norm, attention, mlp, dropout Layer
}

func (c Transformer) decoderBlock() decoderBlock {
	return decoderBlock{family: c.Family, norm: c.norm(), attention: c.attention(), mlp: c.mlp(), dropout: c.dropout()}
}

// Kind names the row.
func (decoderBlock) Kind() string { return "DecoderBlock" }

func (c Transformer) attention() Attention {
	a := Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: !c.Bias && !c.QKVBias,
		NoOutBias: !c.Bias, Rotary: true, RotaryDim: c.RotaryDim, Plain: c.Plain, Packed: c.Family == Phi3,
	}
	a.joined = c.Family == Phi || c.Family == Phi3
	if c.Family == Phi {
		a.NoBias, a.NoOutBias = false, false
		a.RotaryDim = c.rotated()
		a.names = phiAttention
	}
	return a
}

var phiAttention = &attentionNames{"q_proj", "k_proj", "v_proj", "", "dense"}

func (c Transformer) mlp() Layer {
	switch {
	case c.Family == Phi:
		return MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseNewGELU)}
	case c.Experts > 0:
		return MoE{Hidden: c.Hidden, FFN: c.FFN, Experts: c.Experts, TopK: c.TopK, Activation: c.Activation}
	case c.Family == Gemma:
		return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseGELUTanh), Bias: c.Bias}
	default:
		return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.Bias, Packed: c.Family == Phi3}
	}
}

// Declare implements Layer.
func (b decoderBlock) Declare(d *Declaration) {
	d.Layer("input_layernorm", b.norm)
	d.Layer("self_attn", b.attention)
	if b.family == Phi {
		d.Layer("resid_dropout", b.dropout)
	} else {
		if b.family == Phi3 {
			d.Layer("resid_attn_dropout", b.dropout)
			d.Layer("resid_mlp_dropout", b.dropout)
		}
		d.Layer("post_attention_layernorm", b.norm)
	}
	d.Layer("mlp", b.mlp)
}

// Forward implements Layer.
func (b decoderBlock) Forward(t *Tape, x Tensor) (Tensor, error) {
	if b.family == Phi {
		return b.parallel(t, x)
	}
	y, err := t.Call("input_layernorm", b.norm, x)
	if err == nil {
		y, err = t.Call("self_attn", b.attention, y)
	}
	if err == nil && b.family == Phi3 {
		y, err = t.Call("resid_attn_dropout", b.dropout, y)
	}
	if err == nil {
		x, err = add(t, y, x)
	}
	if err == nil {
		y, err = t.Call("post_attention_layernorm", b.norm, x)
	}
	if err == nil {
		y, err = t.Call("mlp", b.mlp, y)
	}
	if err == nil && b.family == Phi3 {
		y, err = t.Call("resid_mlp_dropout", b.dropout, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return add(t, y, x)
}

// parallel is the block of Phi, whose attention and MLP read the same norm.
func (b decoderBlock) parallel(t *Tape, x Tensor) (Tensor, error) {
	y, err := t.Call("input_layernorm", b.norm, x)
	if err != nil {
		return Tensor{}, err
	}
	a, err := t.Call("self_attn", b.attention, y)
	if err == nil {
		a, err = t.Call("resid_dropout", b.dropout, a)
	}
	if err == nil {
		y, err = t.Call("mlp", b.mlp, y)
	}
	if err == nil {
		y, err = t.Call("resid_dropout", b.dropout, y)
	}
	if err == nil {
		y, err = add(t, a, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	return add(t, y, x)
}
