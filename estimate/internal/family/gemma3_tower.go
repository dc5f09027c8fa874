package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var Gemma3Vision = register(&Family{
	Name:    "Gemma 3's tower",
	tower:   Transformer.siglip,
	role:    encoder,
	patched: true,
	Types: []Type{
		{Name: "gemma3", Base: "Gemma3Model", Read: readGemma3Vision},
	},
})

// siglip is t as the vision tower of Gemma 3, and what fits its patches to the text's width.
func (t Transformer) siglip(width int) []tape.Layer {
	t.Image, t.Patch, t.Channels = setting.Or(t.Image, 224), setting.Or(t.Patch, 16), setting.Or(t.Channels, 3)
	side := t.Image / max(1, t.Patch)
	return []tape.Layer{
		tape.Named{Name: "vision_tower", Layer: held{tape.Sequential{
			tape.Named{Name: "patch_embedding", Layer: layer.Conv2d{In: t.Channels, Out: t.Hidden, Kernel: t.Patch, Stride: t.Patch}},
			tape.Named{Name: "position_embedding", Layer: layer.Embedding{Num: min(side, setting.MaxField) * min(side, setting.MaxField), Dim: t.Hidden}},
			tape.Named{Name: "layers", Layer: tape.Repeat{N: t.Blocks, Layer: t.vitBlock()}},
			tape.Named{Name: "post_layernorm", Layer: layer.LayerNorm{Size: t.Hidden}},
		}}},
		tape.Named{Name: "multi_modal_projector", Layer: held{tape.Sequential{
			layer.Learned{Name: "mm_input_projection_weight", Shape: alloc.Shape{t.Hidden, width}},
			tape.Named{Name: "mm_soft_emb_norm", Layer: layer.RMSNorm{Size: t.Hidden}},
		}}},
	}
}

// readGemma3Vision reads Gemma 3 with its vision tower, which is a SigLIP: the tower is
// counted, and not run.
func readGemma3Vision(c *Config, a *Model) {
	class := c.class("Gemma3ForConditionalGeneration")
	if !c.has("text_config") || !c.has("vision_config") {
		c.fail("text_config, vision_config", "the key is missing")
	}
	text, v := c.component("text_config", "gemma3_text"), c.component("vision_config", "siglip_vision_model")
	// What transformers takes where text_config leaves it out.
	text.usual("num_attention_heads", 8)
	text.usual("vocab_size", 262_208)
	text.inherit("tie_word_embeddings", c)
	tower := Model{Transformer: Transformer{Family: c.family, Activation: layer.UseGELUTanh}}
	a.Family = text.family
	text.Read(text, a)
	a.NoHead = class == c.Base
	v.number(&tower.Hidden, "hidden_size", 768)
	v.number(&tower.Blocks, "num_hidden_layers", 12)
	v.number(&tower.Heads, "num_attention_heads", 12)
	v.number(&tower.FFN, "intermediate_size", 3072)
	v.number(&tower.Image, "image_size", 224)
	v.number(&tower.Patch, "patch_size", 16)
	v.number(&tower.Channels, "num_channels", 3)
	c.vision(a, &tower)
}
