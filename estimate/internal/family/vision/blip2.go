package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BLIP2 is a ViT and a Q-Former, whose learned queries read the image's patches for a text decoder
// (arXiv:2301.12597; transformers' modeling_blip_2.py). They are counted and do not run.
var BLIP2 = &family.Family{
	Name:  "BLIP-2's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(blip2Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "blip-2", Base: "Blip2Model", Read: readBLIP2}},
}

// qFormer is a BERT whose queries read an image in some of its blocks.
type qFormer struct {
	hidden, blocks, ffn int
	queries             int  // number of learned queries
	every               int  // one of this many blocks reads the image
	texts               bool // it has an MLP for texts beside that for queries
}

func blip2Tower(c family.Transformer, width int, d *tape.Declaration) {
	q := family.Own[qFormer](c)
	if q == nil {
		d.Failf("there is no Q-Former: BLIP-2 needs it")
	}
	norm, side := layer.LayerNorm{Size: c.Hidden}, min(c.Side(), setting.MaxField)
	linear := func(in, out int) tape.Layer { return layer.Linear{In: in, Out: out} }
	d.Layer("vision_model", tape.Sequential{
		tape.As("patch_embedding", c.PatchConv(false)), tape.As("class_embedding", layer.Learned{Name: "weight", Shape: alloc.Shape{1, 1, c.Hidden}}),
		tape.As("position_embedding", layer.Embedding{Num: min(setting.Product(side, side), setting.MaxField-1) + 1, Dim: c.Hidden}),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
			norm, layer.Linear{In: c.Hidden, Out: 3 * min(c.Hidden, setting.MaxField/3), NoBias: !c.QKVBias}, linear(c.Hidden, c.Hidden), norm, linear(c.Hidden, c.FFN), linear(c.FFN, c.Hidden),
		}}),
		tape.As("post_layernorm", norm),
	})
	d.Layer("query_tokens", layer.Learned{Name: "weight", Shape: alloc.Shape{1, q.queries, q.hidden}})
	d.Layer("qformer", tape.Sequential{tape.As("layernorm", layer.LayerNorm{Size: q.hidden}), tape.As("layer", q.stack(c.Hidden))})
	d.Layer("language_projection", linear(q.hidden, width))
}

// stack returns the blocks. image is the width of the image's vectors that some of them read.
func (q qFormer) stack(image int) tape.Layer {
	linear := func(in, out int) tape.Layer { return layer.Linear{In: in, Out: out} }
	norm := layer.LayerNorm{Size: q.hidden}
	attention := func(from int) tape.Sequential {
		return tape.Sequential{linear(q.hidden, q.hidden), linear(from, q.hidden), linear(from, q.hidden), linear(q.hidden, q.hidden), norm}
	}
	mlp := tape.Sequential{linear(q.hidden, q.ffn), linear(q.ffn, q.hidden), norm}
	return family.Stacked(q.blocks, func(block int) int { return min(1, block%q.every) }, func(kind, _ int) tape.Layer {
		block := tape.Sequential{attention(q.hidden), mlp}
		if kind == 0 {
			block = append(block, attention(image))
		}
		if q.texts {
			block = append(block, mlp)
		}
		return block
	})
}

func readBLIP2(c *family.Config, a *family.Model) {
	imageText{head: "Blip2ForConditionalGeneration", vision: "blip_2_vision_model", numbers: func(v, c *family.Config, t *family.Model) {
		v.Number(&t.Hidden, "hidden_size", 1408)
		v.Number(&t.Blocks, "num_hidden_layers", 39)
		v.Number(&t.Heads, "num_attention_heads", 16)
		v.Number(&t.FFN, "intermediate_size", 6144)
		v.Number(&t.Image, "image_size", 224)
		v.Number(&t.Patch, "patch_size", 14)
		t.QKVBias = v.Flag("qkv_bias", true)
		f, q := c.Component("qformer_config", "blip_2_qformer"), &qFormer{}
		f.Number(&q.hidden, "hidden_size", 768)
		f.Number(&q.blocks, "num_hidden_layers", 12)
		f.Number(&q.ffn, "intermediate_size", 3072)
		f.Number(&q.every, "cross_attention_frequency", 2)
		c.Number(&q.queries, "num_query_tokens", 32)
		f.Harmless("encoder_hidden_size", "num_attention_heads") // the first is the tower's width; the second divides the width
		if q.texts = f.Flag("use_qformer_text_input", false); !q.texts {
			f.Harmless("vocab_size", "max_position_embeddings")
		}
		t.Own = q
	}}.read(c, a)
}
