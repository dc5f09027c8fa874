package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// tower is the vision tower of a model of images and text, and what fits its output to the width of the
// text. Its parameters are there, and it does not run.
type tower func(c Transformer, width int, d *tape.Declaration)

// towers are those of each family that a Transformer's Vision can have.
var towers = map[Family]tower{
	CLIPVision: clipTower, PixtralVision: pixtralTower, Qwen2Vision: qwen2Tower, Qwen25Vision: qwen25Tower,
	Qwen3Vision: qwen3Tower, Llama4Vision: llama4Tower,
}

// towerLayer is a tower as a layer.
type towerLayer struct {
	tower tower
	c     Transformer
	width int
}

func (l towerLayer) Declare(d *tape.Declaration) {
	if d.WantAll(tape.Setting{Name: "Vision.Hidden", Value: l.c.Hidden, Least: 1}, tape.Setting{Name: "Vision.Blocks", Value: l.c.Blocks, Least: 0}, tape.Setting{Name: "Vision.Heads", Value: l.c.Heads, Least: 1}, tape.Setting{Name: "Vision.FFN", Value: l.c.FFN, Least: 1},
		tape.Setting{Name: "Vision.Patch", Value: l.c.Patch, Least: 1}, tape.Setting{Name: "Vision.Channels", Value: l.c.Channels, Least: 1}, tape.Setting{Name: "Vision.Merge", Value: l.c.Merge, Least: 0}) {
		l.tower(l.c, l.width, d)
	}
}

func (towerLayer) Forward(t *tape.Tape, _ tape.Tensor) (tape.Tensor, error) {
	return tape.Tensor{}, t.Errorf("a vision tower does not run")
}

// vision are the layers of the tower and of what joins it to the text.
func (c Transformer) vision(width int) []tape.Layer {
	if l, ok := towers[c.Family]; ok {
		c.Channels, c.Patch = setting.Or(c.Channels, 3), setting.Or(c.Patch, 16)
		return []tape.Layer{tape.Named{Name: "visual", Layer: held{towerLayer{l, c, width}}}}
	}
	if c.Family == Gemma3nVision {
		return c.gemma3nVision(width)
	}
	return c.siglip(width)
}

// side is the number of patches along an image's side.
func (c Transformer) side() int { return setting.Or(c.Image, 224) / max(1, c.Patch) }

// merged is the width of so many patches together.
func (c Transformer) merged() int {
	n := setting.Or(c.Merge, 2)
	return int(min(setting.FLOPs(c.Hidden, n, n), setting.MaxField))
}

func (c Transformer) patchConv(noBias bool) tape.Layer {
	return layer.Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch, NoBias: noBias}
}

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

func llama4Tower(c Transformer, width int, d *tape.Declaration) {
	norm := layer.LayerNorm{Size: c.Hidden}
	side := min(c.side(), setting.MaxField)
	d.Param("class_embedding", c.Hidden)
	d.Param("positional_embedding_vlm", int(min(setting.FLOPs(side, side), setting.MaxField-1))+1, c.Hidden)
	d.Layer("patch_embedding.linear", layer.Linear{In: int(min(setting.FLOPs(c.Channels, c.Patch, c.Patch), setting.MaxField)), Out: c.Hidden, NoBias: true})
	d.Layer("layernorm_pre", norm)
	d.Layer("layernorm_post", norm)
	d.Layer("model.layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
		tape.Named{Name: "self_attn", Layer: layer.Attention{Hidden: c.Hidden, Heads: c.Heads}},
		tape.Named{Name: "mlp", Layer: layer.MLP{Hidden: c.Hidden, FFN: c.FFN}},
		tape.Named{Name: "input_layernorm", Layer: norm},
		tape.Named{Name: "post_attention_layernorm", Layer: norm},
	}})
	d.Layer("vision_adapter.mlp", tape.Sequential{
		tape.Named{Name: "fc1", Layer: layer.Linear{In: c.FFN, Out: c.EmbedDim, NoBias: true}},
		tape.Named{Name: "fc2", Layer: layer.Linear{In: c.EmbedDim, Out: c.Classes, NoBias: true}},
	})
	d.Layer("multi_modal_projector.linear_1", layer.Linear{In: c.Classes, Out: width, NoBias: true})
}
