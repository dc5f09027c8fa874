package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SigLIP is CLIP with GELU, and attention with a learned query in place of the class token (arXiv:2303.15343;
// transformers' modeling_siglip.py).
var SigLIP = &family.Family{
	Name:   "SigLIP",
	Input:  pairInput,
	Layers: siglipPair,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "siglip", Base: "SiglipModel", Read: readSigLIP}},
}

// siglipEncoder is SigLIP's image tower.
var siglipEncoder = encoder{
	name: "siglip_vision_model",
	read: func(c *family.Config, t *family.Model) {
		towerNumbers(c, &t.Transformer)
		c.Activation(t, c.Word("hidden_act"), "gelu_pytorch_tanh")
		t.Pooler = c.Flag("vision_use_head", true)
	},
	parts: func(c family.Transformer) tape.Sequential {
		parts := siglipImages(c, family.Positions{Buffered: true})
		if c.Pooler {
			parts = append(parts, tape.As("head", probe{c}))
		}
		return parts
	},
	run: func(f *tape.Flow, c family.Transformer, x tape.Tensor) ([]tape.Tensor, tape.Tensor) {
		states := throughBlocks(f, "encoder.layers", c.Blocks, f.Call("embeddings", x))
		output := f.Call("post_layernorm", states[len(states)-1])
		if c.Pooler {
			family.Return(f.Tape, f.Call("head", output))
		}
		for i := range states { // as the convolution left the patches
			states[i] = f.Transposed(states[i])
		}
		return states, output
	},
}

// siglipImages returns the tower of images up to its last norm. positions are the learned ones, without their sizes.
func siglipImages(c family.Transformer, positions family.Positions) tape.Sequential {
	side := min(c.Side(), setting.MaxField)
	positions.Num, positions.Dim = setting.Product(side, side), c.Hidden
	return tape.Sequential{
		tape.As("embeddings", tape.Sequential{
			tape.As("patch_embedding", c.PatchConv(false)),
			tape.Inline(family.FlatPatches{}),
			tape.As("position_embedding", positions),
		}),
		tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseGELUTanh, false)}),
		tape.As("post_layernorm", layer.LayerNorm{Size: c.Hidden}),
	}
}

// siglipText returns SigLIP's tower of texts, whose output has this width.
func siglipText(c family.Transformer, projected int) tape.Sequential {
	return tape.Sequential{
		tape.As("embeddings", tape.Sequential{
			tape.As("token_embedding", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
			tape.As("position_embedding", family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true}),
		}),
		tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseGELUTanh, false)}),
		tape.As("final_layer_norm", layer.LayerNorm{Size: c.Hidden}),
		tape.Inline(family.First{}),
		tape.As("head", layer.Linear{In: c.Hidden, Out: projected}),
	}
}

// siglipPair builds SigLIP, whose image tower ends in attention with a learned query.
func siglipPair(c family.Transformer) []tape.Layer {
	image := images(c)
	image.Pooler = true
	one := alloc.Shape{1}
	return []tape.Layer{tape.Inline(contrast{
		text:    siglipText(c, image.Hidden),
		image:   siglipEncoder.parts(image),
		scalars: []tape.Param{{Name: "logit_scale", Shape: one}, {Name: "logit_bias", Shape: one}},
	})}
}

// probe is nn.MultiheadAttention with a learned query over all positions, followed by a norm and an
// MLP.
type probe struct{ c family.Transformer }

func (probe) Kind() string { return "AttentionPooling" }

func (l probe) Declare(d *tape.Declaration) {
	n := l.c.Hidden
	d.Param("probe", 1, 1, n)
	d.Param("attention.in_proj_weight", 3*min(n, setting.MaxField/3), n)
	d.Param("attention.in_proj_bias", 3*min(n, setting.MaxField/3))
	d.Layer("attention.out_proj", layer.Linear{In: n, Out: n})
	d.Layer("layernorm", layer.LayerNorm{Size: n})
	d.Layer("mlp", l.mlp())
}

func (l probe) mlp() tape.Layer {
	return layer.MLP{Hidden: l.c.Hidden, FFN: l.c.FFN, Activation: setting.Or(l.c.Activation, layer.UseGELUTanh)}
}

func (l probe) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	batch, length, n := x.Shape[0], x.Shape[1], x.Shape[2]
	heads := max(1, l.c.Heads)
	query := alloc.Shape{batch, 1, n}
	// These operations keep: the query and its copies; keys and values; the scores; the output.
	q := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: query, Params: true, KeepOwn: []tape.Own{{Shape: query}}})
	kv := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{2, batch, length, n}, Params: true, Keep: []tape.Tensor{x}, FLOPs: setting.FLOPs(batch, length, n, n, 4)})
	scores := t.Op(tape.Op{In: []tape.Tensor{q, kv}, Shape: alloc.Shape{batch, heads, 1, length}, Keep: []tape.Tensor{q, kv}, KeepOutput: true})
	y := t.Op(tape.Op{In: []tape.Tensor{scores, kv}, Shape: query, Keep: []tape.Tensor{kv, scores}})
	y = t.Call("attention.out_proj", layer.Linear{In: n, Out: n}, y)
	z := t.Call("layernorm", layer.LayerNorm{Size: n}, y)
	z = t.Call("mlp", l.mlp(), z)
	z = t.Sum(y, z)
	return family.First{}.Forward(t, z)
}

func readSigLIP(c *family.Config, a *family.Model) {
	text, vision := pairSettings(c, a, "siglip_text_model", "siglip_vision_model")
	if width := vision.Whole("hidden_size", 0); text.Whole("projection_size", width) != width {
		c.Unknown("projection_size", "another width than the images'")
	}
	if !vision.Flag("vision_use_head", true) {
		c.Unknown("vision_use_head", "false")
	}
}
