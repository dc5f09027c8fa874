package vision

import (
	"errors"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GLM4Vision is the tower of GLM-4.1V: that of Qwen2.5-VL with learned positions, and a convolution and
// a gated MLP that merge patches (transformers' modeling_glm4v.py).
var GLM4Vision = &family.Family{
	Name:  "GLM-4V's tower",
	Tower: glm4Tower,
	Look:  glm4Look,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "glm4v", Base: "Glm4vModel", Read: readGLM4V}},
}

// glm4Merged are the settings that only GLM-4V's tower has.
type glm4Merged struct {
	frames, output, middle int  // of a patch; widths of the output and of its MLP
	bias                   bool // queries, keys and values have biases
	act                    layer.Activation
}

func glm4Own(c family.Transformer) glm4Merged {
	return *setting.Or(family.Own[glm4Merged](c), &glm4Merged{frames: 2})
}

func glm4Tower(c family.Transformer, _ int) []tape.Layer {
	own, merge, norm := glm4Own(c), setting.Or(c.Merge, 2), layer.RMSNorm{Size: c.Hidden, Unfused: true}
	return packedTower(c, packedParts{
		norm: norm, mlp: layer.GatedMLP{Hidden: c.Hidden, FFN: own.output, Activation: own.act}, frames: own.frames,
		attention: func(a *layer.Attention) { a.NoBias, a.NoOutBias = !own.bias, true },
		beside: tape.Sequential{
			tape.As("post_conv_layernorm", norm),
			tape.As("embeddings.position_embedding", sampled{side: c.Side(), width: c.Hidden}),
			tape.As("post_layernorm", norm),
			tape.As("downsample", layer.Conv2d{In: c.Hidden, Out: own.output, Kernel: merge, Stride: merge}),
			tape.As("merger", tape.Sequential{
				tape.As("proj", layer.Linear{In: own.output, Out: own.output, NoBias: true}),
				tape.As("post_projection_norm", layer.LayerNorm{Size: own.output}),
				tape.As("act1", layer.GELU{}),
				tape.Inline(layer.GatedMLP{Hidden: own.output, FFN: own.middle, Activation: own.act}),
			}),
		},
		before: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			return f.Call("embeddings.position_embedding", f.Call("post_conv_layernorm", x))
		},
		after: func(f *tape.Flow, states []tape.Tensor) tape.Tensor {
			x := f.Call("post_layernorm", states[len(states)-1])
			x = f.Permute(f.View(x, -1, merge, merge, c.Hidden), 0, 3, 1, 2)
			x = f.Call("downsample", x)
			family.Return(f.Tape, x)
			return f.Call("merger", f.View(x, 1, -1, own.output))
		},
	})
}

// sampled adds learned positions of a square, which grid_sample interpolates in float32 at the places of the patches.
type sampled struct{ side, width int }

func (sampled) Kind() string { return "Embedding" }

func (l sampled) Declare(d *tape.Declaration) {
	layer.Embedding{Num: setting.Product(l.side, l.side), Dim: l.width}.Declare(d)
}

func (l sampled) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	patches := x.Dim(0) * x.Dim(1)
	keep := []tape.Tensor{t.Const(alloc.Float32, 1, patches, 1, 2)}
	if x.DType != alloc.Float32 {
		keep = append(keep, t.Const(alloc.Float32, setting.Product(l.side, l.side), l.width))
	}
	y := t.Op(tape.Op{In: keep, Shape: x.Shape, DType: alloc.Float32, Params: true, Keep: keep})
	return t.Add(x, t.In(x.DType, y))
}

// glm4Look is that of an image whose sides are whole merged squares, and whose pixels in all frames of a patch are
// within bounds. Small images are first enlarged to one square (image_processing_glm4v.py, smart_resize).
func glm4Look(c family.Transformer) (family.Look, error) {
	const least, most = 112 * 112, 28 * 28 * 15000
	frames, prompt, square := max(1, glm4Own(c).frames), *c.Prompt, float64(setting.Product(c.Patch, c.Merge))
	if width, height := float64(prompt.Width), float64(prompt.Height); math.Min(width, height) < square {
		by := math.Max(square/height, square/width)
		prompt.Width, prompt.Height = int(width*by), int(height*by)
	}
	if prompt.Width < 1 || prompt.Height < 1 {
		return family.Look{}, errors.New("one side is too short")
	}
	c.Prompt = &prompt
	return packedLook(c, frames, least/float64(frames), most/float64(frames))
}

func readGLM4V(c *family.Config, a *family.Model) {
	imageText{head: "Glm4vForConditionalGeneration", text: "glm4v_text", vision: "glm4v_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		v.Number(&t.Image, "image_size", 336)
		own := &glm4Merged{bias: v.Flag("attention_bias", false)}
		v.Number(&own.frames, "temporal_patch_size", 2)
		v.Number(&own.output, "out_hidden_size", 4096)
		v.Number(&own.middle, "intermediate_size", 13696)
		activation := family.Model{}
		v.Activation(&activation, v.Word("hidden_act"), "silu")
		own.act = activation.Activation
		t.FFN, t.Own = own.output, own
	}}.read(c, a)
}
