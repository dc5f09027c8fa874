package vision

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma4Vision is the image tower of Gemma 4: Gemma's blocks over patches, with learned positions
// by row and column. The patches of an image, and what pads them, are averaged in squares (modeling_gemma4.py).
var Gemma4Vision = &family.Family{
	Name:  "Gemma 4's tower",
	Tower: gemma4Vision,
	Look:  gemma4Look,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "gemma4", Base: "Gemma4Model", Read: readGemma4Whole}},
}

// pooled is what only Gemma 4's tower of images has.
type pooled struct {
	clipped     bool // projections clamp their inputs and outputs
	standardize bool // the vectors are shifted and scaled by constants
}

// gemma4Sounds is the audio tower, a Conformer.
var gemma4Sounds = &family.Family{Name: "Gemma 4's tower of sounds", Role: family.Encoder, Tower: gemma4Audio}

func bare(in, out int) tape.Layer { return layer.Linear{In: in, Out: out, NoBias: true} }

func gemma4Vision(c family.Transformer, width int) []tape.Layer {
	own, norm := *setting.Or(family.Own[pooled](c), &pooled{}), gemma4Norm(c.Hidden)
	block := tape.Sequential{
		tape.Skip(tape.As("input_layernorm", norm), tape.As("self_attn", layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: true, Plain: c.Plain, Projection: own.projection,
			Rotary: true, PerText: true, QKNorm: layer.NormHeads, HeadNorm: func(_, size int) tape.Layer { return gemma4Norm(size) }, ValueNorm: true, Masked: gemma4Pads(c),
		}), tape.As("post_attention_layernorm", norm)),
		tape.Skip(tape.As("pre_feedforward_layernorm", norm), tape.As("mlp", own.mlp(c)), tape.As("post_feedforward_layernorm", norm)),
	}
	pixels, plain := setting.Product(3, c.Patch, c.Patch), gemma4Norm(c.Hidden)
	plain.Plain = true
	parts := tape.Sequential{
		tape.As("patch_embedder", tape.Module{Name: "PatchEmbedder", Parts: tape.Sequential{
			tape.As("input_proj", bare(pixels, c.Hidden)), tape.Inline(layer.Learned{Name: "position_embedding_table", Shape: alloc.Shape{2, c.Positions, c.Hidden}}),
		}, Run: gemma4Embed}),
		tape.As("encoder.rotary_emb", family.Frequencies{N: c.HeadWidth() / 4}),
		tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: block}),
	}
	if own.standardize {
		parts = append(parts, tape.Inline(family.Constants{{Name: "std_bias", Shape: alloc.Shape{c.Hidden}}, {Name: "std_scale", Shape: alloc.Shape{c.Hidden}}}))
	}
	return []tape.Layer{
		tape.As("vision_tower", tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			padding := f.Op(tape.Op{In: []tape.Tensor{family.TowerInput(f.Tape, 1)}, Shape: alloc.Shape{x.Dim(0), x.Dim(1), 1}, DType: alloc.Bool})
			x = f.Call("patch_embedder", x, padding)
			mask := padding
			if gemma4Pads(c) {
				mask = f.Const(alloc.Bool, x.Dim(0), 1, x.Dim(1), x.Dim(1))
			}
			x = f.Call("encoder.layers", x)
			f.Hold(mask)
			return own.pool(f, c, x, padding)
		}}),
		tape.As("embed_vision", tape.Sequential{tape.As("embedding_pre_projection_norm", plain), tape.As("embedding_projection", bare(c.Hidden, width))}),
		family.Listed,
	}
}

// gemma4Norm is the norm of all of Gemma 4.
func gemma4Norm(size int) layer.RMSNorm {
	return layer.RMSNorm{Size: size, Unfused: true, Late: true, Powered: true}
}

// gemma4Embed projects patches and adds the learned vectors of their columns and rows, which are 0 for what pads an image.
func gemma4Embed(f *tape.Flow, x tape.Tensor) tape.Tensor {
	places, padding := family.TowerInput(f.Tape, 1), f.Beside(0)
	x = f.Call("input_proj", f.In(f.Activation(), f.Scale(f.Scale(x))))
	places = f.Scale(places) // clamped
	look := []tape.Tensor{places}
	o := tape.Op{In: look, Shape: x.Shape, DType: f.Activation(), Params: true, Keep: f.ForWeights(look)}
	columns, rows := f.Op(o), f.Op(o)
	positions := f.Add(columns, rows)
	positions = f.Op(tape.Op{In: []tape.Tensor{positions, padding}, Shape: x.Shape, Keep: []tape.Tensor{padding}})
	return f.Add(x, positions)
}

// pool averages the patches of each square of an image, and leaves out what pads it.
func (p pooled) pool(f *tape.Flow, c family.Transformer, x, padding tape.Tensor) tape.Tensor {
	images, patches, squares := x.Dim(0), x.Dim(1), x.Dim(1)/max(1, c.Merge*c.Merge)
	x = f.Op(tape.Op{In: []tape.Tensor{x, padding}, Shape: x.Shape, Keep: []tape.Tensor{padding}})
	numbers := f.Op(tape.Op{In: []tape.Tensor{family.TowerInput(f.Tape, 1)}, Shape: alloc.Shape{images, patches, squares}}) // one of them is 1
	weights := f.Scale(f.In(alloc.Float32, numbers))
	shape := alloc.Shape{images, squares, c.Hidden}
	y := f.Op(tape.Op{In: []tape.Tensor{weights, f.Widen(x)}, Shape: shape, Keep: []tape.Tensor{weights}, FLOPs: setting.FLOPs(images, squares, patches, c.Hidden, 2)})
	y = f.Scale(f.Widen(f.In(x.DType, y)))
	columns, rows, _ := gemma4Grid(c)
	vectors := alloc.Shape{setting.Product(images, columns/max(1, c.Merge), rows/max(1, c.Merge)), c.Hidden}
	y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: vectors, KeepOwn: []tape.Own{{Shape: shape[:2], DType: alloc.Bool}}})
	if p.standardize {
		y = f.Scale(f.Scale(y))
	}
	y = f.In(x.DType, y)
	family.Return(f.Tape, y)
	return y
}

// projection is a projection of a block. It is a part of what clamps its input and output.
func (p pooled) projection(linear layer.Linear) tape.Layer {
	m := tape.Module{Name: "ClippableLinear", Parts: tape.Sequential{tape.As("linear", linear)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		if p.clipped {
			x = layer.KeepInput(f.Tape, x, false)
		}
		if x = f.Call("linear", x); p.clipped {
			x = layer.KeepInput(f.Tape, x, false)
		}
		return x
	}}
	for _, name := range []string{"input_min", "input_max", "output_min", "output_max"} {
		if p.clipped {
			m.Params = append(m.Params, tape.Param{Name: name, Shape: alloc.Shape{}, Buffer: true})
		}
	}
	return m
}

// mlp is the MLP of a block.
func (p pooled) mlp(c family.Transformer) tape.Layer {
	in := p.projection(layer.Linear{In: c.Hidden, Out: c.FFN, NoBias: true})
	return tape.Module{Name: "GatedMLP", Parts: tape.Sequential{
		tape.As("gate_proj", in), tape.As("up_proj", in), tape.As("down_proj", p.projection(layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: true})),
		tape.As("act_fn", c.Activation.Layer(layer.UseGELUTanh)),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		gate := f.Call("act_fn", f.Call("gate_proj", x))
		return f.Call("down_proj", f.Mul(gate, f.Call("up_proj", x)))
	}}
}

// gemma4Tokens is the number of tokens that an image may have, as transformers' processor has it.
const gemma4Tokens = 280

// gemma4Grid returns the number of patches in a row and in a column of an image of the Prompt. Its sides' ratio is kept
// (image_processing_gemma4.py, get_aspect_ratio_preserving_size).
func gemma4Grid(c family.Transformer) (columns, rows int, err error) {
	if c.Prompt == nil {
		return 0, 0, nil
	}
	side, width, height := float64(setting.Product(c.Merge, c.Patch)), float64(c.Prompt.Width), float64(c.Prompt.Height)
	factor := math.Sqrt(float64(gemma4Tokens*c.Merge*c.Merge) * float64(c.Patch) * float64(c.Patch) / (width * height))
	wide, high := math.Floor(factor*width/side), math.Floor(factor*height/side)
	switch {
	case high == 0:
		wide, high = math.Min(math.Floor(width/height), gemma4Tokens), 1
	case wide == 0:
		wide, high = 1, math.Min(math.Floor(height/width), gemma4Tokens)
	}
	if wide*high > gemma4Tokens || wide*high < 1 {
		return 0, 0, fmt.Errorf("its sides become %v x %v squares of patches: want at most %d squares", wide, high, gemma4Tokens)
	}
	return int(wide) * c.Merge, int(high) * c.Merge, nil
}

// gemma4Pads reports whether patches without pixels follow those of an image, so that attention needs a mask.
func gemma4Pads(c family.Transformer) bool {
	columns, rows, _ := gemma4Grid(c)
	return columns*rows != gemma4Tokens*c.Merge*c.Merge
}

// gemma4Look is that of an image whose patches are padded to as many as there may be. There is a token for each square of
// patches.
func gemma4Look(c family.Transformer) (family.Look, error) {
	if c.Merge < 2 || c.Merge > maxKernel {
		return family.Look{}, family.Unfit(fmt.Sprintf("pooling_kernel_size is %d: want 2 to %d", c.Merge, maxKernel))
	}
	columns, rows, err := gemma4Grid(c)
	if err == nil && max(columns, rows) > c.Positions {
		err = fmt.Errorf("it becomes %d x %d patches: the model has %d positions", columns, rows, c.Positions)
	}
	most := gemma4Tokens * c.Merge * c.Merge
	return family.Look{Tokens: columns / c.Merge * rows / c.Merge, Sized: true, Inputs: func(batch, _, count int) []family.Input {
		return []family.Input{
			{DType: alloc.Float32, Shape: []int{batch, count, most, setting.Product(3, c.Patch, c.Patch)}},
			{DType: alloc.Int64, Shape: []int{batch, count, most, 2}}, // the patches' columns and rows
		}
	}}, err
}

// maxKernel bounds the side of a square of patches that are averaged.
const maxKernel = 1 << 10

// gemma4Convolutions are the channels of the convolutions that shorten a sound's spectrum.
var gemma4Convolutions = [2]int{128, 32}

func gemma4Audio(c family.Transformer, width int) []tape.Layer {
	hidden, norm := min(max(0, c.Hidden), setting.MaxField/4), layer.RMSNorm{Size: c.Hidden}
	first, second := gemma4Convolutions[0], gemma4Convolutions[1]
	feedForward := tape.Sequential{norm, bare(hidden, 4*hidden), bare(4*hidden, hidden), norm}
	attention := tape.Sequential{
		bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), bare(hidden, hidden), // one of them for positions
		layer.Learned{Name: "per_dim_scale", Shape: alloc.Shape{hidden / max(1, c.Heads)}}, norm, norm,
	}
	convolution := tape.Sequential{norm, bare(hidden, 2*hidden), layer.Conv1d{In: hidden, Out: hidden, Kernel: c.Patch, Groups: hidden, NoBias: true}, norm, bare(hidden, hidden)}
	return []tape.Layer{
		tape.As("audio_tower", tape.Sequential{
			layer.Conv2d{In: 1, Out: first, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: first},
			layer.Conv2d{In: first, Out: second, Kernel: 3, NoBias: true}, layer.RMSNorm{Size: second}, bare(first/4*second, hidden),
			tape.As("layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{feedForward, attention, convolution, feedForward, norm}}),
			layer.Linear{In: hidden, Out: c.EmbedDim},
		}),
		tape.As("embed_audio", bare(c.EmbedDim, width)),
	}
}

// readGemma4Whole reads Gemma 4 with the towers that it has. That of sounds is counted but does not run.
func readGemma4Whole(c *family.Config, a *family.Model) {
	class := c.Class("Gemma4ForConditionalGeneration")
	text := c.Component("text_config", "gemma4_text")
	text.Inherit("tie_word_embeddings", c) // the text's own flag does not count
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	if c.Has("vision_config") {
		v, tower, own := c.Component("vision_config", "gemma4_vision"), family.Model{Transformer: family.Transformer{Family: c.Family}}, &pooled{}
		v.Number(&tower.Hidden, "hidden_size", 768)
		v.Number(&tower.FFN, "intermediate_size", 3072)
		v.Number(&tower.Blocks, "num_hidden_layers", 16)
		v.Number(&tower.Heads, "num_attention_heads", 12)
		v.Number(&tower.KVHeads, "num_key_value_heads", 12)
		v.Number(&tower.HeadSize, "head_dim", 64)
		v.Number(&tower.Patch, "patch_size", 16)
		v.Number(&tower.Positions, "position_embedding_size", 10_240)
		v.Number(&tower.Merge, "pooling_kernel_size", 3)
		v.Activation(&tower, v.Word("hidden_activation"), "gelu_pytorch_tanh")
		own.clipped, own.standardize = v.Flag("use_clipped_linears", false), v.Flag("standardize", false)
		tower.Own = own
		c.Check("vision_config", &tower)
		a.Vision = &tower.Transformer
	}
	if c.Has("audio_config") {
		v, tower := c.Component("audio_config", "gemma4_audio"), family.Transformer{Family: gemma4Sounds}
		v.Number(&tower.Hidden, "hidden_size", 1024)
		v.Number(&tower.Blocks, "num_hidden_layers", 12)
		v.Number(&tower.Heads, "num_attention_heads", 8)
		v.Number(&tower.Patch, "conv_kernel_size", 5)
		v.Number(&tower.EmbedDim, "output_proj_dims", 1536)
		if l := v.List("subsampling_conv_channels"); l != nil && (len(l) != 2 || [2]int(l) != gemma4Convolutions) {
			v.Unknown("subsampling_conv_channels", "channels other than 128 and 32")
		}
		a.Audio = &tower
	}
}
