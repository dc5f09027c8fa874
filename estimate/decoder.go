package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// decoder builds the layers of the families from Llama to Phi3.
func (c Transformer) decoder() []Layer {
	body := Sequential{Named{"embed_tokens", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}}}
	norm, last := c.norm(), "norm"
	if c.Family == Phi {
		embedded := c.dropout()
		if c.PlainEmbeddings {
			embedded = Identity{}
		}
		body = append(body, Named{"embed_dropout", embedded})
		last = "final_layernorm"
	}
	if c.gemma() {
		body = append(body, Named{"embed_scale", scale{}})
	}
	dense := c.denseBlocks()
	body = append(body,
		Named{"rotary_emb", frequencies{c.rotated() / 2, c.rotations()}},
		Named{"layers", Sequential{
			inline{Repeat{N: dense, Layer: c.decoderBlock(c.mlp())}},
			inline{Repeat{N: c.Blocks - dense, Layer: c.decoderBlock(c.mixture()), first: dense}},
		}},
		Named{last, norm})
	layers := []Layer{Named{"model", body}}
	if c.Classes != 0 {
		return append(layers, Named{"score", Linear{In: c.Hidden, Out: c.Classes, NoBias: true}})
	}
	if !c.NoHead {
		head := Linear{In: c.Hidden, Out: c.Vocab, NoBias: c.Family != Phi, Split: ByColumns}
		if c.Tied {
			head.Tied = ".model.embed_tokens.weight"
		}
		layers = append(layers, Named{"lm_head", head})
		if c.CappedLogits {
			layers = append(layers, Named{"softcap", softCap{}})
		}
	}
	return layers
}

// denseBlocks is the number of blocks with an MLP in place of a mixture.
func (c Transformer) denseBlocks() int {
	if c.Experts == 0 || c.DenseBlocks > c.Blocks {
		return c.Blocks
	}
	return c.DenseBlocks
}

// gemma reports whether norms are shifted and embeddings scaled.
func (c Transformer) gemma() bool { return c.Family == Gemma || c.Family == Gemma2 }

// rotations is the number of kinds of layers that rotate by tables of their own:
// Gemma 3 has one for layers with a window and one for those without.
func (c Transformer) rotations() int {
	if c.Family == Gemma2 && c.QKNorm != NoQKNorm {
		return 2
	}
	return 1
}

// softCap is cap * tanh(x / cap), as Gemma 2 bounds its logits.
type softCap struct{}

// Declare implements Layer.
func (softCap) Declare(*Declaration) {}

// Forward implements Layer.
func (softCap) Forward(t *Tape, x Tensor) (Tensor, error) {
	x, err := t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
	if err == nil {
		x, err = keepOutput(t, x)
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
}

func (c Transformer) norm() Layer {
	if c.Family == Phi {
		return LayerNorm{Size: c.Hidden}
	}
	return RMSNorm{Size: c.Hidden, Unfused: true, Shifted: c.gemma(), Late: c.Family == OLMo2 || c.Family == GPTOSS}
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

// frequencies holds the buffers of the rotary positions, for so many kinds of layers.
type frequencies struct{ n, kinds int }

// Kind names the row.
func (frequencies) Kind() string { return "RotaryEmbedding" }

// Declare implements Layer.
func (l frequencies) Declare(d *Declaration) {
	names := []string{"inv_freq", "original_inv_freq"}
	if l.kinds == 2 {
		names = []string{"full_attention_inv_freq", "full_attention_original_inv_freq", "sliding_attention_inv_freq", "sliding_attention_original_inv_freq"}
	}
	for _, name := range names {
		d.Add(Param{Name: name, Shape: alloc.Shape{l.n}, DType: alloc.Float32, Buffer: true})
	}
}

// Forward implements Layer.
func (frequencies) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }

// rotated is the number of elements of a head that rotate.
func (c Transformer) rotated() int {
	if c.Latent != nil {
		return c.Latent.RopeSize
	}
	if c.RotaryDim == 0 && c.Family == Phi {
		return c.headSize() / 2
	}
	return or(c.RotaryDim, c.headSize())
}

// decoderBlock is one block of a decoder; its parts are made once for all blocks.
type decoderBlock struct{ Sequential }

// Kind names the row.
func (decoderBlock) Kind() string { return "DecoderBlock" }

// Forward implements Layer.
func (b decoderBlock) Forward(t *Tape, x Tensor) (Tensor, error) {
	x, err := b.Sequential.Forward(t, x)
	t.hold(t.attention) // which the block's code names and does not use
	t.attention = Tensor{}
	return x, err
}

// decoderBlock makes the block with the MLP or mixture. Attention and MLP are each
// added to what they read, between the norms of the family.
func (c Transformer) decoderBlock(mlp Layer) Layer {
	norm, attention := c.norm(), Named{"self_attn", c.attention()}
	if c.Latent != nil {
		latent := *c.Latent
		latent.Hidden, latent.Heads = c.Hidden, c.Heads
		attention.Layer = latent
	}
	feed := Named{"mlp", mlp}
	switch c.Family {
	case Phi:
		return parallelBlock{norm: norm, attention: attention.Layer, mlp: mlp, dropout: c.dropout()}
	case Phi3:
		return decoderBlock{Sequential{
			residual(Named{"input_layernorm", norm}, attention, Named{"resid_attn_dropout", c.dropout()}),
			residual(Named{"post_attention_layernorm", norm}, feed, Named{"resid_mlp_dropout", c.dropout()}),
		}}
	case Gemma2:
		return decoderBlock{Sequential{
			residual(Named{"input_layernorm", norm}, attention, Named{"post_attention_layernorm", norm}),
			residual(Named{"pre_feedforward_layernorm", norm}, feed, Named{"post_feedforward_layernorm", norm}),
		}}
	case OLMo2:
		return decoderBlock{Sequential{
			residual(attention, Named{"post_attention_layernorm", norm}),
			residual(feed, Named{"post_feedforward_layernorm", norm}),
		}}
	default:
		return decoderBlock{Sequential{
			residual(Named{"input_layernorm", norm}, attention),
			residual(Named{"post_attention_layernorm", norm}, feed),
		}}
	}
}

func (c Transformer) attention() Attention {
	a := Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: !c.Bias && !c.QKVBias,
		NoOutBias: !c.Bias, Rotary: true, RotaryDim: c.RotaryDim, Plain: c.Plain, Eager: c.Eager, Packed: c.Family == Phi3,
		QKNorm: c.QKNorm, Capped: c.CappedScores, shifted: c.gemma(), rotations: c.rotations(),
	}
	switch c.Family {
	case Gemma2:
		a.masks = 2
	case GPTOSS:
		a.masks, a.Sinks, a.paired, a.NoBias, a.NoOutBias = 2, true, true, false, false
	}
	if c.Family == OLMo2 {
		a.QKNorm, a.lateNorm = NormAllHeads, true
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
	switch c.Family {
	case Phi:
		return MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseNewGELU)}
	case Gemma, Gemma2:
		return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseGELUTanh), Bias: c.Bias}
	default:
		return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.Bias, Packed: c.Family == Phi3}
	}
}

// mixture is what stands in place of the MLP.
func (c Transformer) mixture() Layer {
	m := MoE{
		Hidden: c.Hidden, FFN: or(c.ExpertFFN, c.FFN), Experts: c.Experts, TopK: c.TopK,
		Shared: c.SharedFFN, Router: c.Router, Activation: c.Activation,
	}
	if c.Family == GPTOSS {
		return ossMoE{m}
	}
	return m
}

// parallelBlock is the block of Phi, whose attention and MLP read the same norm.
type parallelBlock struct{ norm, attention, mlp, dropout Layer }

// Kind names the row.
func (parallelBlock) Kind() string { return "DecoderBlock" }

// Declare implements Layer.
func (b parallelBlock) Declare(d *Declaration) {
	d.Layer("input_layernorm", b.norm)
	d.Layer("self_attn", b.attention)
	d.Layer("resid_dropout", b.dropout)
	d.Layer("mlp", b.mlp)
}

// Forward implements Layer.
func (b parallelBlock) Forward(t *Tape, x Tensor) (Tensor, error) {
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
