package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// PixtralVision is the tower of Mistral 3.
var PixtralVision = &family.Family{
	Name:  "Pixtral",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(pixtralTower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "mistral3", Base: "Mistral3Model", Read: readMistral3}},
}

// pixtralTower declares Mistral 3's tower.
func pixtralTower(c family.Transformer, width int, d *tape.Declaration) {
	norm := layer.RMSNorm{Size: c.Hidden}
	d.Layer("vision_tower", tape.Sequential{
		tape.As("patch_conv", c.PatchConv(true)),
		tape.As("ln_pre", norm),
		tape.As("transformer.layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
			tape.As("attention_norm", norm),
			tape.As("feed_forward", layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN}),
			tape.As("attention", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true}),
			tape.As("ffn_norm", norm),
		}}),
	})
	d.Layer("multi_modal_projector", tape.Sequential{
		tape.As("norm", norm),
		tape.As("patch_merger.merging_layer", layer.Linear{In: merged(c), Out: c.Hidden, NoBias: true}),
		tape.As("linear_1", layer.Linear{In: c.Hidden, Out: width, NoBias: !c.Bias}),
		tape.As("linear_2", layer.Linear{In: width, Out: width, NoBias: !c.Bias}),
	})
}

func readMistral3(c *family.Config, a *family.Model) {
	imageText{head: "Mistral3ForConditionalGeneration", vision: "pixtral", numbers: func(v, c *family.Config, t *family.Model) {
		t.Bias = c.Flag("multimodal_projector_bias", false)
		towerNumbers(v, &t.Transformer)
		c.Number(&t.Merge, "spatial_merge_size", 2)
		v.Number(&t.HeadSize, "head_dim", max(1, t.Hidden/t.Heads))
	}}.read(c, a)
}
