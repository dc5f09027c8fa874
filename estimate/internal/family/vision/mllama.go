package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MLlamaVision is the tower of Llama 3.2 Vision. It reads an image in tiles, whose arrangement has
// learned vectors, through blocks and gated blocks (transformers' modeling_mllama.py).
var MLlamaVision = &family.Family{
	Name:  "Llama 3.2 Vision's tower",
	Tower: mllamaTower,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "mllama", Base: "MllamaModel", Read: readMLlama}},
}

// arrangedTiles are the settings that only Llama 3.2 Vision's tower has.
type arrangedTiles struct {
	tiles, ratios int // of an image at most, and arrangements of them
	gated         int // blocks with gates, after the others
	output        int // width of what the text reads: the last output and those of some blocks
}

func mllamaTower(c family.Transformer, width int) []tape.Layer {
	own := *setting.Or(family.Own[arrangedTiles](c), &arrangedTiles{})
	patches, wide := min(setting.Product(c.Side(), c.Side()), setting.MaxField-1)+1, setting.Product(own.tiles, c.Hidden)
	gate := tape.Inline(layer.Learned{Name: "gate", Shape: alloc.Shape{1}})
	arranged := func(wide int) tape.Layer { return layer.Embedding{Num: own.ratios + 1, Dim: wide} }
	ofTile := tape.Sequential{tape.As("embedding", arranged(wide)), gate}
	return []tape.Layer{
		tape.As("vision_model", tape.Sequential{
			tape.Inline(layer.Learned{Name: "class_embedding", Shape: alloc.Shape{c.Hidden}}),
			tape.As("patch_embedding", c.PatchConv(true)),
			tape.As("gated_positional_embedding", tape.Sequential{
				gate, tape.Inline(layer.Learned{Name: "embedding", Shape: alloc.Shape{patches, c.Hidden}}), tape.As("tile_embedding", arranged(setting.Product(patches, wide))),
			}),
			tape.As("pre_tile_positional_embedding", ofTile),
			tape.As("post_tile_positional_embedding", ofTile),
			tape.As("layernorm_pre", layer.LayerNorm{Size: c.Hidden}),
			tape.As("layernorm_post", layer.LayerNorm{Size: c.Hidden}),
			tape.As("transformer.layers", tape.Repeat{N: c.Blocks, Layer: mllamaTowerBlock(c, false)}),
			tape.As("global_transformer.layers", tape.Repeat{N: own.gated, Layer: mllamaTowerBlock(c, true)}),
		}),
		tape.As("multi_modal_projector", layer.Linear{In: own.output, Out: width}),
	}
}

func mllamaTowerBlock(c family.Transformer, gated bool) tape.Layer {
	block := tape.Sequential{
		tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true}),
		tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: layer.MlpNames}),
		tape.As("input_layernorm", layer.LayerNorm{Size: c.Hidden}),
		tape.As("post_attention_layernorm", layer.LayerNorm{Size: c.Hidden}),
	}
	for _, name := range []string{"gate_attn", "gate_ffn"} {
		if gated {
			block = append(block, tape.Inline(layer.Learned{Name: name, Shape: alloc.Shape{1}}))
		}
	}
	return block
}

func readMLlama(c *family.Config, a *family.Model) {
	imageText{head: "MllamaForConditionalGeneration", text: "mllama_text_model", vision: "mllama_vision_model", numbers: func(v, _ *family.Config, t *family.Model) {
		own := &arrangedTiles{ratios: 8}
		v.Number(&t.Hidden, "hidden_size", 1280)
		v.Number(&t.Blocks, "num_hidden_layers", 32)
		v.Number(&t.Heads, "attention_heads", 16)
		v.Number(&t.FFN, "intermediate_size", 5120)
		v.Pixels(&t.Transformer, 14)
		v.Activation(t, v.Word("hidden_act"), "gelu")
		v.Number(&own.tiles, "max_num_tiles", 4)
		v.Number(&own.gated, "num_global_layers", 8)
		v.Number(&own.output, "vision_output_dim", 7680)
		var ratios [][]int
		if v.Decode("supported_aspect_ratios", &ratios) {
			own.ratios = len(ratios)
		}
		if own.gated > family.MaxBlocks {
			v.Fail("num_global_layers", "%d blocks, more than %d", own.gated, family.MaxBlocks)
		}
		t.Own = own
	}}.read(c, a)
}
