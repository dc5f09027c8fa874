package estimate

// tower is the vision tower of a model of images and text, and what fits its output to the width of the
// text. Its parameters are there, and it does not run.
type tower func(c Transformer, width int, d *Declaration)

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

// Declare implements Layer.
func (l towerLayer) Declare(d *Declaration) {
	if d.wantAll(setting{"Vision.Hidden", l.c.Hidden, 1}, setting{"Vision.Blocks", l.c.Blocks, 0}, setting{"Vision.Heads", l.c.Heads, 1}, setting{"Vision.FFN", l.c.FFN, 1},
		setting{"Vision.Patch", l.c.Patch, 1}, setting{"Vision.Channels", l.c.Channels, 1}, setting{"Vision.Merge", l.c.Merge, 0}) {
		l.tower(l.c, l.width, d)
	}
}

// Forward implements Layer.
func (towerLayer) Forward(t *Tape, _ Tensor) (Tensor, error) {
	return Tensor{}, t.Errorf("a vision tower does not run")
}

// vision are the layers of the tower and of what joins it to the text.
func (c Transformer) vision(width int) []Layer {
	if l, ok := towers[c.Family]; ok {
		c.Channels, c.Patch = or(c.Channels, 3), or(c.Patch, 16)
		return []Layer{Named{"visual", held{towerLayer{l, c, width}}}}
	}
	if c.Family == Gemma3nVision {
		return c.gemma3nVision(width)
	}
	return c.siglip(width)
}

// side is the number of patches along an image's side.
func (c Transformer) side() int { return or(c.Image, 224) / max(1, c.Patch) }

// merged is the width of so many patches together.
func (c Transformer) merged() int {
	n := or(c.Merge, 2)
	return int(min(FLOPs(c.Hidden, n, n), maxField))
}

func (c Transformer) patchConv(noBias bool) Layer {
	return Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch, NoBias: noBias}
}

// clipTower is LLaVA's: a CLIP and two layers.
func clipTower(c Transformer, width int, d *Declaration) {
	d.Layer("vision_tower", clipVision(c))
	d.Layer("multi_modal_projector", Sequential{
		Named{"linear_1", Linear{In: c.Hidden, Out: width, NoBias: !c.Bias}},
		Named{"linear_2", Linear{In: width, Out: width, NoBias: !c.Bias}},
	})
}

// pixtralTower is that of Mistral 3.
func pixtralTower(c Transformer, width int, d *Declaration) {
	norm := RMSNorm{Size: c.Hidden}
	d.Layer("vision_tower", Sequential{
		Named{"patch_conv", c.patchConv(true)},
		Named{"ln_pre", norm},
		Named{"transformer.layers", Repeat{N: c.Blocks, Layer: Sequential{
			Named{"attention_norm", norm},
			Named{"feed_forward", GatedMLP{Hidden: c.Hidden, FFN: c.FFN}},
			Named{"attention", Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true}},
			Named{"ffn_norm", norm},
		}}},
	})
	d.Layer("multi_modal_projector", Sequential{
		Named{"norm", norm},
		Named{"patch_merger.merging_layer", Linear{In: c.merged(), Out: c.Hidden, NoBias: true}},
		Named{"linear_1", Linear{In: c.Hidden, Out: width, NoBias: !c.Bias}},
		Named{"linear_2", Linear{In: width, Out: width, NoBias: !c.Bias}},
	})
}

// qwenPatches is the convolution of two frames.
func (c Transformer) qwenPatches(noBias bool) Layer {
	return Conv3d{In: c.Channels, Out: c.Hidden, KernelDHW: [3]int{2, c.Patch, c.Patch}, StrideDHW: [3]int{2, c.Patch, c.Patch}, NoBias: noBias}
}

func (c Transformer) qwenBlocks(norm, mlp Layer) Layer {
	return Repeat{N: c.Blocks, Layer: Sequential{
		Named{"norm1", norm},
		Named{"norm2", norm},
		Named{"attn", Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Packed: true, names: &attentionNames{packed: "qkv", out: "proj"}}},
		Named{"mlp", mlp},
	}}
}

// merger joins patches and fits them to the text.
func (c Transformer) merger(norm Layer, width int) Layer {
	wide := c.merged()
	return Sequential{
		Named{"norm", norm},
		Named{"linear_fc1", Linear{In: wide, Out: wide}},
		Named{"linear_fc2", Linear{In: wide, Out: width}},
	}
}

func qwen2Tower(c Transformer, width int, d *Declaration) {
	d.Layer("patch_embed", c.qwenPatches(true))
	d.Layer("blocks", c.qwenBlocks(LayerNorm{Size: c.Hidden}, MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", c.merger(LayerNorm{Size: c.Hidden}, width))
}

func qwen25Tower(c Transformer, width int, d *Declaration) {
	norm := RMSNorm{Size: c.Hidden}
	d.Layer("patch_embed", c.qwenPatches(true))
	d.Layer("blocks", c.qwenBlocks(norm, GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true}))
	d.Layer("merger", c.merger(norm, width))
}

func qwen3Tower(c Transformer, width int, d *Declaration) {
	d.Layer("patch_embed", c.qwenPatches(false))
	d.Layer("pos_embed", Embedding{Num: c.Positions, Dim: c.Hidden})
	d.Layer("blocks", c.qwenBlocks(LayerNorm{Size: c.Hidden}, MLP{Hidden: c.Hidden, FFN: c.FFN}))
	d.Layer("merger", c.merger(LayerNorm{Size: c.Hidden}, width))
	d.Layer("deepstack_merger_list", Repeat{N: c.Taps, Layer: c.merger(LayerNorm{Size: c.merged()}, width)})
}

func llama4Tower(c Transformer, width int, d *Declaration) {
	norm := LayerNorm{Size: c.Hidden}
	side := min(c.side(), maxField)
	d.Param("class_embedding", c.Hidden)
	d.Param("positional_embedding_vlm", int(min(FLOPs(side, side), maxField-1))+1, c.Hidden)
	d.Layer("patch_embedding.linear", Linear{In: int(min(FLOPs(c.Channels, c.Patch, c.Patch), maxField)), Out: c.Hidden, NoBias: true})
	d.Layer("layernorm_pre", norm)
	d.Layer("layernorm_post", norm)
	d.Layer("model.layers", Repeat{N: c.Blocks, Layer: Sequential{
		Named{"self_attn", Attention{Hidden: c.Hidden, Heads: c.Heads}},
		Named{"mlp", MLP{Hidden: c.Hidden, FFN: c.FFN}},
		Named{"input_layernorm", norm},
		Named{"post_attention_layernorm", norm},
	}})
	d.Layer("vision_adapter.mlp", Sequential{
		Named{"fc1", Linear{In: c.FFN, Out: c.EmbedDim, NoBias: true}},
		Named{"fc2", Linear{In: c.EmbedDim, Out: c.Classes, NoBias: true}},
	})
	d.Layer("multi_modal_projector.linear_1", Linear{In: c.Classes, Out: width, NoBias: true})
}
