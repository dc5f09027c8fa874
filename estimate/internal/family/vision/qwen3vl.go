package vision

import (
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen3Vision is the tower of Qwen3-VL and its successors: that of Qwen2-VL with learned positions. The first
// blocks of the text add what it makes of some of its blocks (modeling_qwen3_vl.py).
var Qwen3Vision = &family.Family{
	Name:  "Qwen3-VL's tower",
	Tower: qwen3Tower,
	Look:  qwen3Look,
	Role:  family.Encoder,
	Types: []family.Type{
		{Name: "qwen3_vl", Base: "Qwen3VLModel", Read: readQwen3VL},
		{Name: "qwen3_vl_moe", Base: "Qwen3VLMoeModel", Read: readQwen3VLMoE},
		{Name: "qwen3_5", Base: "Qwen3_5Model", Read: readQwen35VL},
		{Name: "qwen3_5_moe", Base: "Qwen3_5MoeModel", Read: readQwen35MoEVL},
	},
}

// taps are the numbers of the tower's blocks whose output is also given to blocks of the text.
type taps []int

func tapsOf(c family.Transformer) taps {
	if own := family.Own[taps](c); own != nil {
		return *own
	}
	return nil
}

func qwen3Tower(c family.Transformer, width int) []tape.Layer {
	own, wide := tapsOf(c), merged(c)
	return packedTower(c, packedParts{
		norm: layer.LayerNorm{Size: c.Hidden}, mlp: layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}, frames: 2,
		beside: tape.Sequential{
			tape.As("pos_embed", layer.Embedding{Num: c.Positions, Dim: c.Hidden}),
			tape.As("merger", merger(c, layer.LayerNorm{Size: c.Hidden}, width)),
			tape.As("deepstack_merger_list", tape.Repeat{N: len(own), Layer: merger(c, layer.LayerNorm{Size: wide}, width)}),
		},
		before: placed,
		after: func(f *tape.Flow, states []tape.Tensor) tape.Tensor {
			for block, x := range states[1:] {
				if i := slices.Index(own, block); i >= 0 {
					x = f.Call("deepstack_merger_list."+strconv.Itoa(i), f.View(x, 1, -1, wide))
					family.Deepen(f.Tape, f.Apply(family.Listed, x))
				}
			}
			x := states[len(states)-1]
			family.Return(f.Tape, x)
			return f.Call("merger", x)
		},
	})
}

// placed adds to each patch the weighted sum of the four learned positions around it.
func placed(f *tape.Flow, x tape.Tensor) tape.Tensor {
	const around = 4
	patches, weights := x.Dim(0)*x.Dim(1), f.Const(alloc.Float32, x.Dim(0)*x.Dim(1), around, 1)
	y := f.Call("pos_embed", f.Const(alloc.Int64, patches, around))
	y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, DType: alloc.Float32, Keep: []tape.Tensor{weights}})
	y = f.In(x.DType, f.Op(tape.Op{In: []tape.Tensor{y}, Shape: alloc.Shape{x.Dim(0), x.Dim(1), x.Dim(2)}}))
	return f.Add(x, y)
}

// merger merges patches and projects them to the width that the tower's settings say, which is the text's in a model
// that runs. Its norm is of patches, or of merged ones.
func merger(c family.Transformer, norm tape.Layer, width int) tape.Layer {
	wide := merged(c)
	return tape.Sequential{
		tape.As("norm", norm),
		tape.Inline(squared(wide)),
		tape.As("linear_fc1", layer.Linear{In: wide, Out: wide}),
		tape.As("act_fn", layer.GELU{}),
		tape.As("linear_fc2", layer.Linear{In: wide, Out: setting.Or(c.EmbedDim, width)}),
	}
}

// squared views patches as merged ones of this width.
type squared int

func (l squared) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return t.View(x, 1, -1, int(l)) }

// qwen3Look is that of an image with the bounds of the published models' preprocessor_config.json.
func qwen3Look(c family.Transformer) (family.Look, error) { return packedLook(c, 2, 1<<16, 1<<24) }

func readQwen3VL(c *family.Config, a *family.Model) {
	a.Batched = true
	qwen3VLSettings(c, a, "Qwen3VLForConditionalGeneration", "qwen3_vl_text", "qwen3_vl_vision", taps{8, 16, 24})
}

func readQwen3VLMoE(c *family.Config, a *family.Model) {
	a.Batched = true
	qwen3VLSettings(c, a, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", taps{8, 16, 24})
}

func readQwen35VL(c *family.Config, a *family.Model) {
	qwen3VLSettings(c, a, "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "qwen3_5_vision", nil)
}

func readQwen35MoEVL(c *family.Config, a *family.Model) {
	qwen3VLSettings(c, a, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe_vision", nil)
}

// qwen3VLSettings reads Qwen3-VL and its successors. usual is the default for the tower's taps.
func qwen3VLSettings(c *family.Config, a *family.Model, head, text, vision string, usual taps) {
	imageText{head: head, text: text, vision: vision, numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		qwenMerger(v, &t.Transformer, "out_hidden_size")
		if n := v.Whole("temporal_patch_size", 2); n != 2 {
			v.Unknown("temporal_patch_size", strconv.Itoa(n))
		}
		own := usual
		if blocks := v.List("deepstack_visual_indexes"); blocks != nil {
			own = blocks
		}
		t.Own = &own
		v.Number(&t.FFN, "intermediate_size", 0)
		v.Number(&t.Positions, "num_position_embeddings", 2304)
		v.Activation(t, v.Word("hidden_act"), "gelu_pytorch_tanh")
	}}.read(c, a)
}
