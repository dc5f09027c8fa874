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

// Qwen2Vision is the tower of Qwen2-VL, which reads images of any size, as patches of two frames
// (arXiv:2409.12191; modeling_qwen2_vl.py).
var Qwen2Vision = &family.Family{
	Name:  "Qwen2-VL's tower",
	Tower: qwen2Tower,
	Look:  qwenLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "qwen2_vl", Base: "Qwen2VLModel", Read: readQwen2VL}},
}

// Qwen25Vision is the tower of Qwen2.5-VL, most of whose blocks attend within windows
// (arXiv:2502.13923; modeling_qwen2_5_vl.py).
var Qwen25Vision = &family.Family{
	Name:  "Qwen2.5-VL's tower",
	Tower: qwen25Tower,
	Look:  qwenLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "qwen2_5_vl", Base: "Qwen2_5_VLModel", Read: readQwen25VL}},
}

// packed says what Qwen's towers have that others have not.
type packed struct {
	frames   int  // that a patch covers
	windowed bool // blocks attend within windows, so that patches are put in the windows' order
}

func packedOf(c family.Transformer) packed {
	return *setting.Or(family.Own[packed](c), &packed{frames: 2})
}

func qwen2Tower(c family.Transformer, width int) []tape.Layer {
	return qwenMerged(c, width, layer.LayerNorm{Size: c.Hidden}, layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseQuickGELU)})
}

func qwen25Tower(c family.Transformer, width int) []tape.Layer {
	return qwenMerged(c, width, layer.RMSNorm{Size: c.Hidden, Unfused: true}, layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Bias: true, Activation: c.Activation})
}

// qwenMerged is a tower that merges patches after its last block.
func qwenMerged(c family.Transformer, width int, norm, mlp tape.Layer) []tape.Layer {
	own, wide, out := packedOf(c), merged(c), setting.Or(c.EmbedDim, width)
	// ordered puts merged squares of this many elements in another order, and keeps their numbers.
	ordered := func(f *tape.Flow, x tape.Tensor, each int) tape.Tensor {
		if !own.windowed {
			return x
		}
		n, _ := x.Shape.Elements()
		squares := max(1, int(n)/max(1, each))
		return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{squares}, DType: alloc.Int64}}})
	}
	return packedTower(c, packedParts{
		norm: norm, mlp: mlp, unbiased: true, frames: own.frames,
		beside: tape.Sequential{
			tape.As("merger.ln_q", norm),
			tape.As("merger.mlp", tape.Sequential{layer.Linear{In: wide, Out: wide}, layer.GELU{}, layer.Linear{In: wide, Out: out}}),
		},
		before: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return ordered(f, x, wide) },
		after: func(f *tape.Flow, states []tape.Tensor) tape.Tensor {
			x := states[len(states)-1]
			family.Return(f.Tape, x)
			x = f.Call("merger.mlp", f.View(f.Call("merger.ln_q", x), 1, -1, wide))
			return ordered(f, x, out)
		},
	})
}

// packedParts are the differences between towers that read packed patches.
type packedParts struct {
	norm, mlp tape.Layer // of a block
	frames    int        // that a patch covers
	unbiased  bool       // the convolution has no bias
	attention func(*layer.Attention)
	beside    tape.Sequential                                      // parts beside the convolution and the blocks
	before    func(f *tape.Flow, x tape.Tensor) tape.Tensor        // between the convolution and the blocks
	after     func(f *tape.Flow, states []tape.Tensor) tape.Tensor // from what goes into the blocks, and each block's output, to vectors for the text
}

// packedTower reads the patches of all images in one sequence. Attention runs for one image after
// another, so that the dimension of images stands for these runs.
func packedTower(c family.Transformer, p packedParts) []tape.Layer {
	kernels := [3]int{p.frames, c.Patch, c.Patch}
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Packed: true, Rotary: true, PerText: true, Tables: alloc.Float32, Joined: true,
		Names: &layer.AttentionNames{Packed: "qkv", Out: "proj"},
	}
	if p.attention != nil {
		p.attention(&attention)
	}
	parts := append(tape.Sequential{
		tape.As("patch_embed.proj", layer.Conv3d{In: c.Channels, Out: c.Hidden, Kernels: kernels, Strides: kernels, NoBias: p.unbiased}),
		tape.As("rotary_pos_emb", family.Frequencies{N: c.HeadWidth() / 4}),
		tape.As("blocks", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
			tape.Skip(tape.As("norm1", p.norm), tape.As("attn", attention)),
			tape.Skip(tape.As("norm2", p.norm), tape.As("mlp", p.mlp)),
		}}),
	}, p.beside...)
	return []tape.Layer{tape.As("visual", tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		images := 1
		if c.Prompt != nil {
			images = setting.Product(f.Input(0).Dim(0), c.Prompt.Count)
		}
		x = f.Call("patch_embed.proj", f.View(x, -1, c.Channels, p.frames, c.Patch, c.Patch))
		x = p.before(f, f.View(x, images, -1, c.Hidden))
		return p.after(f, throughBlocks(f, "blocks", c.Blocks, x))
	}}), family.Listed}
}

// qwenLook is that of an image that is scaled so that its sides are whole merged squares and its pixels
// within bounds (image_processing_qwen2_vl.py, smart_resize). A token stands for each square.
func qwenLook(c family.Transformer) (family.Look, error) {
	return packedLook(c, packedOf(c).frames, 56*56, 28*28*1280)
}

// packedLook is the look of an image that has at least and at most so many pixels.
func packedLook(c family.Transformer, frames int, least, most float64) (family.Look, error) {
	const longest = 200
	width, height := float64(c.Prompt.Width), float64(c.Prompt.Height)
	if math.Max(width, height) > longest*math.Min(width, height) {
		return family.Look{}, fmt.Errorf("one side is more than %d times as long as the other", longest)
	}
	square := float64(setting.Product(c.Patch, c.Merge))
	wide, high := math.RoundToEven(width/square)*square, math.RoundToEven(height/square)*square
	switch {
	case wide*high > most:
		by := math.Sqrt(width * height / most)
		wide, high = math.Max(square, math.Floor(width/by/square)*square), math.Max(square, math.Floor(height/by/square)*square)
	case wide*high < least:
		by := math.Sqrt(least / (width * height))
		wide, high = math.Ceil(width*by/square)*square, math.Ceil(height*by/square)*square
	}
	squares := int(wide/square) * int(high/square)
	return family.Look{Tokens: squares, Sized: true, Inputs: family.Joined(setting.Product(squares, c.Merge, c.Merge), setting.Product(c.Channels, frames, c.Patch, c.Patch))}, nil
}

// qwenMerger reads the width of the merger's output, whose key is out.
func qwenMerger(c *family.Config, t *family.Transformer, out string) {
	c.Number(&t.EmbedDim, out, 0)
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
		v.Activation(t, v.Word("hidden_act"), "quick_gelu")
		t.Own = readPacked(v)
	}}.read(c, a)
}

func readQwen25VL(c *family.Config, a *family.Model) {
	a.Batched = true
	imageText{head: "Qwen2_5_VLForConditionalGeneration", text: "qwen2_5_vl_text", vision: "qwen2_5_vl_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		qwenTower(v, &t.Transformer, "hidden_size")
		qwenMerger(v, &t.Transformer, "out_hidden_size")
		v.Number(&t.FFN, "intermediate_size", 0)
		v.Activation(t, v.Word("hidden_act"), "silu")
		own := readPacked(v)
		own.windowed = true
		t.Own = own
	}}.read(c, a)
}

// readPacked reads what Qwen's towers have that others have not.
func readPacked(v *family.Config) *packed {
	var own packed
	v.Number(&own.frames, "temporal_patch_size", 2)
	return &own
}
