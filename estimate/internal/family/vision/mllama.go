package vision

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MLlamaVision is the tower of Llama 3.2 Vision. It reads an image in tiles, whose arrangement has
// learned vectors, through blocks and gated blocks. Blocks of the text read what it makes of them beside the text
// (transformers' modeling_mllama.py).
var MLlamaVision = &family.Family{
	Name:   "Llama 3.2 Vision's tower",
	Tower:  mllamaTower,
	Look:   mllamaLook,
	Beside: mllamaBeside,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "mllama", Base: "MllamaModel", Read: readMLlama}},
}

// arrangedTiles are the settings that only Llama 3.2 Vision's tower has.
type arrangedTiles struct {
	tiles, ratios int   // of an image at most, and arrangements of them
	gated         int   // blocks with gates, after the others
	output        int   // width of what the text reads: the last output and those of some blocks
	read          []int // the blocks whose outputs the text reads too
}

// patches returns the number of vectors of a tile, the class token among them.
func (arrangedTiles) patches(c family.Transformer) int {
	return min(setting.Product(c.Side(), c.Side()), setting.MaxField-1) + 1
}

// mllamaLook is that of an image of any size: it is padded to as many tiles as there may be. One token stands for it.
func mllamaLook(c family.Transformer) (family.Look, error) {
	own := *family.Own[arrangedTiles](c)
	if len(own.read) == 0 || slices.ContainsFunc(own.read, func(block int) bool { return block < 0 || block >= c.Blocks }) {
		return family.Look{}, family.Unfit(fmt.Sprintf("intermediate_layers_indices is %v, of %d blocks", own.read, c.Blocks))
	}
	if own.output != setting.Product(c.Hidden, 1+len(own.read)) {
		return family.Look{}, family.Unfit("vision_output_dim is not the width of the outputs that the text reads")
	}
	return family.Look{Tokens: 1, Vectors: setting.Product(own.tiles, own.patches(c)), Inputs: func(batch, length, count int) []family.Input {
		return []family.Input{
			family.Reals(batch, count, own.tiles, c.Channels, c.Image, c.Image),
			family.Tokens(batch, count),                                         // the arrangements of the tiles
			{DType: alloc.Int64, Shape: []int{batch, count, own.tiles}},         // tiles that are no padding
			{DType: alloc.Int64, Shape: []int{batch, length, count, own.tiles}}, // which tokens attend to which tiles
		}
	}}, nil
}

func mllamaTower(c family.Transformer, width int) []tape.Layer {
	own := *setting.Or(family.Own[arrangedTiles](c), &arrangedTiles{})
	patches, wide := own.patches(c), setting.Product(own.tiles, c.Hidden)
	gate := layer.Scaled{Name: "gate", Shape: alloc.Shape{1}}
	arranged := func(wide int) tape.Layer { return layer.Embedding{Num: own.ratios + 1, Dim: wide} }
	ofTile := tape.Module{Name: "TileEmbedding", Parts: tape.Sequential{tape.As("embedding", arranged(wide)), tape.Inline(gate)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		vectors := f.View(f.Call("embedding", family.TowerInput(f.Tape, 1)), x.Dim(0), x.Dim(1), 1, x.Dim(-1))
		return f.Add(x, f.Apply(gate, vectors))
	}}
	places := tape.Module{Name: "PositionEmbedding", Parts: tape.Sequential{
		tape.Inline(gate), tape.Inline(layer.Learned{Name: "embedding", Shape: alloc.Shape{patches, c.Hidden}}), tape.As("tile_embedding", arranged(setting.Product(patches, wide))),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		ids := family.TowerInput(f.Tape, 1)
		x = f.Add(x, f.Op(tape.Op{In: []tape.Tensor{ids}, Shape: x.Shape[2:], DType: f.Activation(), Params: true})) // all images have the same
		vectors := f.View(f.Call("tile_embedding", ids), x.Shape...)
		return f.Add(x, f.Apply(gate, vectors))
	}}
	parts := tape.Sequential{
		tape.Inline(layer.Learned{Name: "class_embedding", Shape: alloc.Shape{c.Hidden}}),
		tape.As("patch_embedding", c.PatchConv(true)),
		tape.As("gated_positional_embedding", places),
		tape.As("pre_tile_positional_embedding", ofTile),
		tape.As("post_tile_positional_embedding", ofTile),
		tape.As("layernorm_pre", layer.LayerNorm{Size: c.Hidden}),
		tape.As("layernorm_post", layer.LayerNorm{Size: c.Hidden}),
		tape.As("transformer.layers", tape.Repeat{N: c.Blocks, Layer: mllamaTowerBlock(c, false)}),
		tape.As("global_transformer.layers", tape.Repeat{N: own.gated, Layer: mllamaTowerBlock(c, true)}),
	}
	return []tape.Layer{
		tape.As("vision_model", tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return own.run(f, c, x) }}),
		tape.As("multi_modal_projector", layer.Linear{In: own.output, Out: width}),
	}
}

// run runs the tower over (images, tiles, channels, height, width).
func (own arrangedTiles) run(f *tape.Flow, c family.Transformer, x tape.Tensor) tape.Tensor {
	f.Rank(x, 5, "(images, tiles, channels, height, width)")
	images, tiles, patches := x.Dim(0), x.Dim(1), own.patches(c)
	x = f.Call("patch_embedding", f.View(x, -1, c.Channels, c.Image, c.Image))
	x = f.Call("pre_tile_positional_embedding", f.View(x, images, tiles, patches-1, c.Hidden))
	shape := alloc.Shape{images, tiles, patches, c.Hidden}
	x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Params: true, PassGrad: true}) // the class token is put before the patches
	x = f.Call("layernorm_pre", f.Call("gated_positional_embedding", x))
	const multiple = 8
	padded := (patches + multiple - 1) / multiple * multiple
	if padded > patches {
		x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{images, tiles, padded, c.Hidden}})
	}
	mask := f.Scale(f.Const(0, images, 1, tiles*padded, tiles*padded)) // which of the vectors are padding
	states := []tape.Tensor{f.View(x, images, -1, c.Hidden)}
	through := func(name string, blocks int) tape.Tensor {
		for i := range blocks {
			states = append(states, f.Call(name+"."+strconv.Itoa(i), states[len(states)-1], mask))
		}
		return states[len(states)-1]
	}
	x = f.Call("layernorm_post", through("transformer.layers", c.Blocks))
	x = f.Call("post_tile_positional_embedding", f.View(x, images, tiles, padded, c.Hidden))
	states = append(states, f.View(x, images, -1, c.Hidden))
	read := []tape.Tensor{through("global_transformer.layers", own.gated)}
	for _, block := range own.read {
		read = append(read, states[1+block])
	}
	chosen := f.Op(tape.Op{In: read[1:], Shape: alloc.Shape{images, tiles, padded, setting.Product(c.Hidden, len(own.read))}, PassGrad: true})
	x = f.Op(tape.Op{In: []tape.Tensor{read[0], chosen}, Shape: alloc.Shape{images, tiles, patches, own.output}, PassGrad: true})
	f.Hold(states...) // both encoders return the outputs of all their blocks
	family.Return(f.Tape, x)
	return x
}

// mllamaBeside returns the vectors of each text, which tokens attend to none of them, and the mask of the attention
// (_prepare_cross_attention_mask).
func mllamaBeside(t *tape.Tape, vectors tape.Tensor) []tape.Tensor {
	tiles := family.TowerInput(t, 3)
	batch, length := tiles.Dim(0), tiles.Dim(1)
	vectors = t.View(vectors, batch, -1, vectors.Dim(-1))
	shape := alloc.Shape{batch, 1, length, vectors.Dim(1)}
	mask := t.Op(tape.Op{In: []tape.Tensor{tiles}, Shape: shape}) // repeated for each vector
	mask = t.In(t.Activation(), t.In(alloc.Float32, mask))
	which := t.In(alloc.Bool, mask)
	mask = t.Op(tape.Op{In: []tape.Tensor{mask, which}, Shape: shape})
	seen := t.In(t.Activation(), t.Op(tape.Op{In: []tape.Tensor{t.In(alloc.Bool, mask)}, Shape: alloc.Shape{batch, length, 1}}))
	return []tape.Tensor{vectors, seen, mask}
}

func mllamaTowerBlock(c family.Transformer, gated bool) tape.Layer {
	norm := layer.LayerNorm{Size: c.Hidden}
	gate := func(name string) tape.Layer {
		if !gated {
			return tape.Inline(tape.Identity{})
		}
		return tape.Inline(layer.Scaled{Name: name, Shape: alloc.Shape{1}})
	}
	return tape.Sequential{
		tape.Skip(tape.As("input_layernorm", norm), tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Plain: c.Plain, Numbers: true}), gate("gate_attn")),
		tape.Skip(tape.As("post_attention_layernorm", norm), tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: layer.MlpNames}), gate("gate_ffn")),
	}
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
		own.read = []int{3, 7, 15, 23, 30}
		v.Decode("intermediate_layers_indices", &own.read)
		if own.gated > family.MaxBlocks {
			v.Fail("num_global_layers", "%d blocks, more than %d", own.gated, family.MaxBlocks)
		}
		t.Own = own
	}}.read(c, a)
}
