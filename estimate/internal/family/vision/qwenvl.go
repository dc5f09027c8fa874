package vision

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen2Vision is the tower of Qwen2-VL.
var Qwen2Vision = &family.Family{
	Name:  "Qwen2-VL's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(qwen2Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "qwen2_vl", Base: "Qwen2VLModel", Read: readQwen2VL}},
}

// Qwen25Vision is the tower of Qwen2.5-VL.
var Qwen25Vision = &family.Family{
	Name:  "Qwen2.5-VL's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(qwen25Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{{Name: "qwen2_5_vl", Base: "Qwen2_5_VLModel", Read: readQwen25VL}},
}

// Qwen3Vision is the tower of Qwen3-VL and its successors.
var Qwen3Vision = &family.Family{
	Name:  "Qwen3-VL's tower",
	Tower: func(c family.Transformer, width int) []tape.Layer { return towerOf(qwen3Tower, c, width) },
	Role:  family.Encoder,
	Types: []family.Type{
		{Name: "qwen3_vl", Base: "Qwen3VLModel", Read: readQwen3VL},
		{Name: "qwen3_vl_moe", Base: "Qwen3VLMoeModel", Read: readQwen3VLMoE},
		{Name: "qwen3_5", Base: "Qwen3_5Model", Read: readQwen35VL},
		{Name: "qwen3_5_moe", Base: "Qwen3_5MoeModel", Read: readQwen35MoEVL},
	},
}

// qwenPatches returns the convolution over two frames.
func qwenPatches(c family.Transformer, noBias bool) tape.Layer {
	return layer.Conv3d{In: c.Channels, Out: c.Hidden, Kernels: [3]int{2, c.Patch, c.Patch}, Strides: [3]int{2, c.Patch, c.Patch}, NoBias: noBias}
}

func qwenBlocks(c family.Transformer, norm, mlp tape.Layer) tape.Layer {
	return tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
		tape.As("norm1", norm),
		tape.As("norm2", norm),
		tape.As("attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Packed: true, Names: &layer.AttentionNames{Packed: "qkv", Out: "proj"}}),
		tape.As("mlp", mlp),
	}}
}

// merger merges patches and projects them to the width that the tower's settings say, which is the text's in a model
// that runs.
func merger(c family.Transformer, norm tape.Layer, width int) tape.Layer {
	wide := merged(c)
	return tape.Sequential{
		tape.As("norm", norm),
		tape.As("linear_fc1", layer.Linear{In: wide, Out: wide}),
		tape.As("linear_fc2", layer.Linear{In: wide, Out: setting.Or(c.EmbedDim, width)}),
	}
}

func qwen2Tower(c family.Transformer, width int, d *tape.Declaration) {
	d.Layer("patch_embed", qwenPatches(c, true))
	d.Layer("blocks", qwenBlocks(c, layer.LayerNorm{Size: c.Hidden}, layer.MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", merger(c, layer.LayerNorm{Size: c.Hidden}, width))
}

func qwen25Tower(c family.Transformer, width int, d *tape.Declaration) {
	norm := layer.RMSNorm{Size: c.Hidden}
	d.Layer("patch_embed", qwenPatches(c, true))
	d.Layer("blocks", qwenBlocks(c, norm, layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}))
	d.Layer("merger", merger(c, norm, width))
}

// taps is the number of blocks of a tower whose outputs are also given to the text.
type taps int

func qwen3Tower(c family.Transformer, width int, d *tape.Declaration) {
	d.Layer("patch_embed", qwenPatches(c, false))
	d.Layer("pos_embed", layer.Embedding{Num: c.Positions, Dim: c.Hidden})
	d.Layer("blocks", qwenBlocks(c, layer.LayerNorm{Size: c.Hidden}, layer.MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", merger(c, layer.LayerNorm{Size: c.Hidden}, width))
	n := 0
	if own := family.Own[taps](c); own != nil {
		n = int(*own)
	}
	d.Layer("deepstack_merger_list", tape.Repeat{N: n, Layer: merger(c, layer.LayerNorm{Size: merged(c)}, width)})
}

// qwenMerger reads the width of the merger's output, whose key is out.
func qwenMerger(c *family.Config, t *family.Transformer, out string) {
	c.Number(&t.EmbedDim, out, 0)
	if n := c.Whole("temporal_patch_size", 2); n != 2 {
		c.Unknown("temporal_patch_size", strconv.Itoa(n))
	}
}

// qwenTower reads the numbers of Qwen's towers. hidden is the key of the width.
func qwenTower(c *family.Config, t *family.Transformer, hidden string) {
	c.Number(&t.Hidden, hidden, 0)
	c.Number(&t.Blocks, "depth", 0)
	c.Number(&t.Heads, "num_heads", 0)
	c.Number(&t.Patch, "patch_size", 14)
	c.Number(&t.Channels, "in_channels", 3)
	c.Number(&t.Merge, "spatial_merge_size", 2)
}

func readQwen2VL(c *family.Config, a *family.Model) {
	a.Batched = true
	imageText{head: "Qwen2VLForConditionalGeneration", text: "qwen2_vl_text", vision: "qwen2_vl_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "embed_dim")
		qwenMerger(v, &t.Transformer, "hidden_size")
		v.Times(&t.FFN, "mlp_ratio", t.Hidden, v.Ratio("mlp_ratio", 4))
	}}.read(c, a)
}

func readQwen25VL(c *family.Config, a *family.Model) {
	a.Batched = true
	imageText{head: "Qwen2_5_VLForConditionalGeneration", text: "qwen2_5_vl_text", vision: "qwen2_5_vl_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		qwenMerger(v, &t.Transformer, "out_hidden_size")
		v.Number(&t.FFN, "intermediate_size", 0)
	}}.read(c, a)
}

func readQwen3VL(c *family.Config, a *family.Model) {
	a.Batched = true
	qwen3VLSettings(c, a, "Qwen3VLForConditionalGeneration", "qwen3_vl_text", "qwen3_vl_vision", 3)
}

func readQwen3VLMoE(c *family.Config, a *family.Model) {
	a.Batched = true
	qwen3VLSettings(c, a, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", 3)
}

func readQwen35VL(c *family.Config, a *family.Model) {
	qwen3VLSettings(c, a, "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "qwen3_5_vision", 0)
}

func readQwen35MoEVL(c *family.Config, a *family.Model) {
	qwen3VLSettings(c, a, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe_vision", 0)
}

// qwen3VLSettings reads Qwen3-VL and its successors. usual is the default for the tower's taps.
func qwen3VLSettings(c *family.Config, a *family.Model, head, text, vision string, usual taps) {
	imageText{head: head, text: text, vision: vision, numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		qwenMerger(v, &t.Transformer, "out_hidden_size")
		n := usual
		if own := v.List("deepstack_visual_indexes"); own != nil {
			n = taps(len(own))
		}
		t.Own = &n
		v.Number(&t.FFN, "intermediate_size", 0)
		v.Number(&t.Positions, "num_position_embeddings", 2304)
	}}.read(c, a)
}
