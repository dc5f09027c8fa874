package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// CLIPVision: the tower of LLaVA, which is held and does not run; so are those that follow.
var CLIPVision = register(&Family{
	Name:  "CLIP's tower",
	tower: towerOf(clipTower),
	role:  encoder,
	Types: []Type{
		{Name: "llava", Base: "LlavaModel", Read: readLLaVA},
	},
})

// PixtralVision: of Mistral 3.
var PixtralVision = register(&Family{
	Name:  "Pixtral",
	tower: towerOf(pixtralTower),
	role:  encoder,
	Types: []Type{
		{Name: "mistral3", Base: "Mistral3Model", Read: readMistral3},
	},
})

// clipTower is LLaVA's: a CLIP and two layers.
func clipTower(c Transformer, width int, d *tape.Declaration) {
	d.Layer("vision_tower", clipVision(c))
	d.Layer("multi_modal_projector", tape.Sequential{
		tape.Named{Name: "linear_1", Layer: layer.Linear{In: c.Hidden, Out: width, NoBias: !c.Bias}},
		tape.Named{Name: "linear_2", Layer: layer.Linear{In: width, Out: width, NoBias: !c.Bias}},
	})
}

// pixtralTower is that of Mistral 3.
func pixtralTower(c Transformer, width int, d *tape.Declaration) {
	norm := layer.RMSNorm{Size: c.Hidden}
	d.Layer("vision_tower", tape.Sequential{
		tape.Named{Name: "patch_conv", Layer: c.patchConv(true)},
		tape.Named{Name: "ln_pre", Layer: norm},
		tape.Named{Name: "transformer.layers", Layer: tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
			tape.Named{Name: "attention_norm", Layer: norm},
			tape.Named{Name: "feed_forward", Layer: layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN}},
			tape.Named{Name: "attention", Layer: layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true}},
			tape.Named{Name: "ffn_norm", Layer: norm},
		}}},
	})
	d.Layer("multi_modal_projector", tape.Sequential{
		tape.Named{Name: "norm", Layer: norm},
		tape.Named{Name: "patch_merger.merging_layer", Layer: layer.Linear{In: c.merged(), Out: c.Hidden, NoBias: true}},
		tape.Named{Name: "linear_1", Layer: layer.Linear{In: c.Hidden, Out: width, NoBias: !c.Bias}},
		tape.Named{Name: "linear_2", Layer: layer.Linear{In: width, Out: width, NoBias: !c.Bias}},
	})
}

func readMistral3(c *Config, a *Model) {
	imageText{head: "Mistral3ForConditionalGeneration", vision: "pixtral", tower: func(v, c *Config, t *Transformer) {
		t.Bias = c.flag("multimodal_projector_bias", false)
		v.tower(t)
		c.number(&t.Merge, "spatial_merge_size", 2)
		v.number(&t.HeadSize, "head_dim", max(1, t.Hidden/t.Heads))
	}}.read(c, a)
}

func readLLaVA(c *Config, a *Model) {
	imageText{head: "LlavaForConditionalGeneration", vision: "clip_vision_model", tower: func(v, c *Config, t *Transformer) {
		t.Bias = c.flag("multimodal_projector_bias", true)
		v.tower(t)
	}}.read(c, a)
}
