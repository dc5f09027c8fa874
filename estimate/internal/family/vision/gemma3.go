package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma3Vision is the tower of Gemma 3, a SigLIP.
var Gemma3Vision = &family.Family{
	Name:    "Gemma 3's tower",
	Tower:   siglip,
	Role:    family.Encoder,
	Patched: true,
	Types:   []family.Type{{Name: "gemma3", Base: "Gemma3Model", Read: readGemma3Vision}},
}

// siglip builds t as the vision tower of Gemma 3, with the projection to the text's width.
func siglip(t family.Transformer, width int) []tape.Layer {
	t.Image, t.Patch, t.Channels = setting.Or(t.Image, 224), setting.Or(t.Patch, 16), setting.Or(t.Channels, 3)
	side := t.Image / max(1, t.Patch)
	tower := tape.Sequential{
		tape.As("patch_embedding", layer.Conv2d{In: t.Channels, Out: t.Hidden, Kernel: t.Patch, Stride: t.Patch}),
		tape.As("position_embedding", layer.Embedding{Num: min(side, setting.MaxField) * min(side, setting.MaxField), Dim: t.Hidden}),
		tape.As("layers", tape.Repeat{N: t.Blocks, Layer: vitBlock(t)}),
		tape.As("post_layernorm", layer.LayerNorm{Size: t.Hidden}),
	}
	if t.Pooler {
		tower = append(tower, tape.As("head", probe{t}))
	}
	return []tape.Layer{
		tape.As("vision_tower", tower),
		tape.As("multi_modal_projector", tape.Sequential{
			layer.Learned{Name: "mm_input_projection_weight", Shape: alloc.Shape{t.Hidden, width}},
			tape.As("mm_soft_emb_norm", layer.RMSNorm{Size: t.Hidden}),
		}),
	}
}

// readGemma3Vision reads Gemma 3 with its vision tower, a SigLIP. The tower is counted, but does
// not run.
func readGemma3Vision(c *family.Config, a *family.Model) {
	class := c.Class("Gemma3ForConditionalGeneration")
	if !c.Given("text_config") || !c.Given("vision_config") {
		c.Fail("text_config, vision_config", "the key is missing")
	}
	text, v := c.Component("text_config", "gemma3_text"), c.Component("vision_config", "siglip_vision_model")
	// The defaults of transformers for a missing key in text_config.
	text.Usual("num_attention_heads", 8)
	text.Usual("vocab_size", 262_208)
	text.Inherit("tie_word_embeddings", c)
	tower := family.Model{Transformer: family.Transformer{Family: c.Family, Activation: layer.UseGELUTanh}}
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	v.Sizes(&tower.Transformer)
	v.Pixels(&tower.Transformer, 16)
	tower.Pooler = v.Flag("vision_use_head", true)
	setTower(c, a, &tower)
}
