package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GLM4Vision is the tower of GLM-4.1V: that of Qwen2.5-VL with learned positions, and a convolution and
// a gated MLP that merge patches (transformers' modeling_glm4v.py).
var GLM4Vision = &family.Family{
	Name:  "GLM-4V's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(glm4Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "glm4v", Base: "Glm4vModel", Read: readGLM4V}},
}

// glm4Merged are the settings that only GLM-4V's tower has.
type glm4Merged struct {
	frames, output, middle int  // of a patch; widths of the output and of its MLP
	bias                   bool // queries, keys and values have biases
}

func glm4Tower(c family.Transformer, _ int, d *tape.Declaration) {
	own, norm := *setting.Or(family.Own[glm4Merged](c), &glm4Merged{}), layer.RMSNorm{Size: c.Hidden}
	merge := setting.Or(c.Merge, 2)
	cube := [3]int{own.frames, c.Patch, c.Patch}
	d.Layer("embeddings.position_embedding", layer.Embedding{Num: product(c.Side(), c.Side()), Dim: c.Hidden})
	d.Layer("patch_embed.proj", layer.Conv3d{In: c.Channels, Out: c.Hidden, Kernels: cube, Strides: cube})
	d.Layer("blocks", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
		tape.As("norm1", norm),
		tape.As("norm2", norm),
		tape.As("attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, Packed: true, NoBias: !own.bias, NoOutBias: true, Names: &layer.AttentionNames{Packed: "qkv", Out: "proj"}}),
		tape.As("mlp", layer.GatedMLP{Hidden: c.Hidden, FFN: own.output}),
	}})
	d.Layer("merger", tape.Sequential{
		tape.As("proj", layer.Linear{In: own.output, Out: own.output, NoBias: true}),
		tape.As("post_projection_norm", layer.LayerNorm{Size: own.output}),
		tape.Inline(layer.GatedMLP{Hidden: own.output, FFN: own.middle}),
	})
	d.Layer("post_conv_layernorm", norm)
	d.Layer("downsample", layer.Conv2d{In: c.Hidden, Out: own.output, Kernel: merge, Stride: merge})
	d.Layer("post_layernorm", norm)
}

func readGLM4V(c *family.Config, a *family.Model) {
	imageText{head: "Glm4vForConditionalGeneration", text: "glm4v_text", vision: "glm4v_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		v.Number(&t.Image, "image_size", 336)
		own := &glm4Merged{bias: v.Flag("attention_bias", false)}
		v.Number(&own.frames, "temporal_patch_size", 2)
		v.Number(&own.output, "out_hidden_size", 4096)
		v.Number(&own.middle, "intermediate_size", 13696)
		t.FFN, t.Own = own.output, own
	}}.read(c, a)
}
