package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen2Vision: of Qwen2-VL.
var Qwen2Vision = register(&Family{
	Name:  "Qwen2-VL's tower",
	tower: towerOf(qwen2Tower),
	role:  encoder,
	Types: []Type{
		{Name: "qwen2_vl", Base: "Qwen2VLModel", Read: readQwen2VL},
	},
})

// Qwen25Vision: of Qwen2.5-VL.
var Qwen25Vision = register(&Family{
	Name:  "Qwen2.5-VL's tower",
	tower: towerOf(qwen25Tower),
	role:  encoder,
	Types: []Type{
		{Name: "qwen2_5_vl", Base: "Qwen2_5_VLModel", Read: readQwen25VL},
	},
})

// Qwen3Vision: of Qwen3-VL.
var Qwen3Vision = register(&Family{
	Name:  "Qwen3-VL's tower",
	tower: towerOf(qwen3Tower),
	role:  encoder,
	Types: []Type{
		{Name: "qwen3_vl", Base: "Qwen3VLModel", Read: readQwen3VL},
		{Name: "qwen3_vl_moe", Base: "Qwen3VLMoeModel", Read: readQwen3VLMoE},
		{Name: "qwen3_5", Base: "Qwen3_5Model", Read: readQwen35VL},
		{Name: "qwen3_5_moe", Base: "Qwen3_5MoeModel", Read: readQwen35MoEVL},
	},
})

// qwenPatches is the convolution of two frames.
func (c Transformer) qwenPatches(noBias bool) tape.Layer {
	return layer.Conv3d{In: c.Channels, Out: c.Hidden, KernelDHW: [3]int{2, c.Patch, c.Patch}, StrideDHW: [3]int{2, c.Patch, c.Patch}, NoBias: noBias}
}

func (c Transformer) qwenBlocks(norm, mlp tape.Layer) tape.Layer {
	return tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
		tape.Named{Name: "norm1", Layer: norm},
		tape.Named{Name: "norm2", Layer: norm},
		tape.Named{Name: "attn", Layer: layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Packed: true, Names: &layer.AttentionNames{Packed: "qkv", Out: "proj"}}},
		tape.Named{Name: "mlp", Layer: mlp},
	}}
}

// merger joins patches and fits them to the text.
func (c Transformer) merger(norm tape.Layer, width int) tape.Layer {
	wide := c.merged()
	return tape.Sequential{
		tape.Named{Name: "norm", Layer: norm},
		tape.Named{Name: "linear_fc1", Layer: layer.Linear{In: wide, Out: wide}},
		tape.Named{Name: "linear_fc2", Layer: layer.Linear{In: wide, Out: width}},
	}
}

func qwen2Tower(c Transformer, width int, d *tape.Declaration) {
	d.Layer("patch_embed", c.qwenPatches(true))
	d.Layer("blocks", c.qwenBlocks(layer.LayerNorm{Size: c.Hidden}, layer.MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", c.merger(layer.LayerNorm{Size: c.Hidden}, width))
}

func qwen25Tower(c Transformer, width int, d *tape.Declaration) {
	norm := layer.RMSNorm{Size: c.Hidden}
	d.Layer("patch_embed", c.qwenPatches(true))
	d.Layer("blocks", c.qwenBlocks(norm, layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}))
	d.Layer("merger", c.merger(norm, width))
}

func qwen3Tower(c Transformer, width int, d *tape.Declaration) {
	d.Layer("patch_embed", c.qwenPatches(false))
	d.Layer("pos_embed", layer.Embedding{Num: c.Positions, Dim: c.Hidden})
	d.Layer("blocks", c.qwenBlocks(layer.LayerNorm{Size: c.Hidden}, layer.MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", c.merger(layer.LayerNorm{Size: c.Hidden}, width))
	d.Layer("deepstack_merger_list", tape.Repeat{N: c.Taps, Layer: c.merger(layer.LayerNorm{Size: c.merged()}, width)})
}

// qwenTower reads the numbers of Qwen's towers, whose width has the key hidden.
func (c *Config) qwenTower(t *Transformer, hidden string) {
	c.number(&t.Hidden, hidden, 0)
	c.number(&t.Blocks, "depth", 0)
	c.number(&t.Heads, "num_heads", 0)
	c.number(&t.Patch, "patch_size", 14)
	c.number(&t.Channels, "in_channels", 3)
	c.number(&t.Merge, "spatial_merge_size", 2)
}

func readQwen2VL(c *Config, a *Model) {
	a.Batched = true
	imageText{head: "Qwen2VLForConditionalGeneration", text: "qwen2_vl_text", vision: "qwen2_vl_vision", tower: func(v, _ *Config, t *Transformer) {
		v.qwenTower(t, "embed_dim")
		v.times(&t.FFN, "mlp_ratio", t.Hidden, v.ratio("mlp_ratio", 4))
	}}.read(c, a)
}

func readQwen25VL(c *Config, a *Model) {
	a.Batched = true
	imageText{head: "Qwen2_5_VLForConditionalGeneration", text: "qwen2_5_vl_text", vision: "qwen2_5_vl_vision", tower: func(v, _ *Config, t *Transformer) {
		v.qwenTower(t, "hidden_size")
		v.number(&t.FFN, "intermediate_size", 0)
	}}.read(c, a)
}

func readQwen3VL(c *Config, a *Model) {
	a.Batched = true
	c.qwen3VL(a, "Qwen3VLForConditionalGeneration", "qwen3_vl_text", "qwen3_vl_vision", 3)
}

func readQwen3VLMoE(c *Config, a *Model) {
	a.Batched = true
	c.qwen3VL(a, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", 3)
}

func readQwen35VL(c *Config, a *Model) {
	c.qwen3VL(a, "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "qwen3_5_vision", 0)
}

func readQwen35MoEVL(c *Config, a *Model) {
	c.qwen3VL(a, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe_vision", 0)
}

// qwen3VL reads Qwen3-VL and its successors; taps are those of the tower where the key is absent.
func (c *Config) qwen3VL(a *Model, head, text, vision string, taps int) {
	imageText{head: head, text: text, vision: vision, tower: func(v, _ *Config, t *Transformer) {
		v.qwenTower(t, "hidden_size")
		t.Taps = taps
		if own := v.list("deepstack_visual_indexes"); own != nil {
			t.Taps = len(own)
		}
		v.number(&t.FFN, "intermediate_size", 0)
		v.number(&t.Positions, "num_position_embeddings", 2304)
	}}.read(c, a)
}
