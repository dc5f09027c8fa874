package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Llama4Vision is the tower of Llama 4.
var Llama4Vision = &family.Family{
	Name:  "Llama 4's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(llama4Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "llama4", Base: "Llama4Model", Read: readLlama4}},
}

// llama4Adapter has the widths of the MLP that joins patches. The width of what the text reads is the tower's EmbedDim;
// in a model that runs it equals out.
type llama4Adapter struct{ in, out int }

func llama4Tower(c family.Transformer, width int, d *tape.Declaration) {
	own := setting.Or(family.Own[llama4Adapter](c), &llama4Adapter{})
	norm := layer.LayerNorm{Size: c.Hidden}
	side := min(c.Side(), setting.MaxField)
	patches := int(min(setting.FLOPs(side, side), setting.MaxField-1))
	d.Param("class_embedding", c.Hidden)
	d.Param("positional_embedding_vlm", patches+1, c.Hidden)
	d.Layer("rotary_embedding", family.Constants{{Name: "freqs_ci", Shape: alloc.Shape{patches + 1, 1, c.HeadWidth() / 2}, DType: alloc.Complex64}})
	d.Layer("patch_embedding.linear", layer.Linear{In: int(min(setting.FLOPs(c.Channels, c.Patch, c.Patch), setting.MaxField)), Out: c.Hidden, NoBias: true})
	d.Layer("layernorm_pre", norm)
	d.Layer("layernorm_post", norm)
	d.Layer("model.layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
		tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads}),
		tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN}),
		tape.As("input_layernorm", norm),
		tape.As("post_attention_layernorm", norm),
	}})
	d.Layer("vision_adapter.mlp", tape.Sequential{
		tape.As("fc1", layer.Linear{In: c.FFN, Out: own.in, NoBias: true}),
		tape.As("fc2", layer.Linear{In: own.out, Out: own.out, NoBias: true}),
	})
	d.Layer("multi_modal_projector.linear_1", layer.Linear{In: c.EmbedDim, Out: width, NoBias: true})
}

func readLlama4(c *family.Config, a *family.Model) {
	imageText{head: "Llama4ForConditionalGeneration", text: "llama4_text", vision: "llama4_vision_model", owns: true, numbers: func(v, _ *family.Config, t *family.Model) {
		towerNumbers(v, &t.Transformer)
		var own llama4Adapter
		t.Own = &own
		v.Number(&own.in, "projector_input_dim", 4096)
		v.Number(&own.out, "projector_output_dim", 4096)
		v.Number(&t.EmbedDim, "vision_output_dim", 4096)
	}}.read(c, a)
}
