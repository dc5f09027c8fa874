// Package diffusion has the families that make images from noise, as diffusers writes them, one
// file each. It reads no files; package checkpoint knows pipelines of several models.
package diffusion

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// timeFeatures is the number of sines and cosines that encode a timestep.
const timeFeatures = 256

// maxDenoiserBlocks bounds each kind of block; the largest models have some fifty.
const maxDenoiserBlocks = 1 << 10

// denoiser is a model in the form of diffusers, whose blocks are numbered. Each block is called
// with the tensors from before beside x.
type denoiser struct {
	parts  tape.Sequential
	blocks []numbered
	before func(f *tape.Flow, x tape.Tensor) (y tape.Tensor, beside []tape.Tensor)
	after  func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor
}

// numbered is n blocks of one kind. Their numbers begin with from. enter changes x before the first block, unless it is
// nil.
type numbered struct {
	name    string
	from, n int
	block   tape.Layer
	enter   func(f *tape.Flow, x tape.Tensor) tape.Tensor
}

// path returns the name of the i-th block.
func (b numbered) path(i int) string { return b.name + "." + strconv.Itoa(b.from+i) }

// layers returns the layers of the model.
func (l denoiser) layers() []tape.Layer {
	parts := l.parts
	for _, b := range l.blocks {
		if b.n < 0 || b.n > maxDenoiserBlocks {
			return []tape.Layer{tape.Wrong(fmt.Sprintf("there are %d of %s: want 0 to %d", b.n, b.name, maxDenoiserBlocks))}
		}
		for i := range b.n {
			parts = append(parts, tape.As(b.path(i), b.block))
		}
	}
	return []tape.Layer{tape.Inline(tape.Module{Name: "Denoiser", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x, beside := l.before(f, x)
		for _, b := range l.blocks {
			if b.enter != nil {
				x = b.enter(f, x)
			}
			for i := range b.n {
				x = f.Call(b.path(i), x, beside...)
			}
		}
		return l.after(f, x, beside)
	}})}
}

// denoise returns the model's Denoiser with its defaults.
func denoise(c family.Transformer) Denoiser {
	d := *setting.Or(family.Own[Denoiser](c), &Denoiser{})
	d.Out = setting.Or(d.Out, c.Channels)
	return d
}

// twoLinears embeds numbers or a text.
func twoLinears(in, hidden int, act tape.Layer, bias bool) tape.Layer {
	return tape.Sequential{
		tape.As("linear_1", layer.Linear{In: in, Out: hidden, NoBias: !bias}),
		tape.As("act", act),
		tape.As("linear_2", layer.Linear{In: hidden, Out: hidden, NoBias: !bias}),
	}
}

// embedTime embeds a number for each of n images.
func embedTime(f *tape.Flow, name string, n int) tape.Tensor {
	return f.Call(name, f.Const(f.Activation(), n, timeFeatures))
}

// chunks splits (batch, n x width) into n tensors of (batch, 1, width).
func chunks(f *tape.Flow, x tape.Tensor, n int) []tape.Tensor {
	return f.Split(f.View(x, x.Dim(0), n, x.Dim(-1)/n), 1, slices.Repeat([]int{1}, n)...)
}

// adapted applies a Linear to the condition and splits the result into n parts.
func adapted(f *tape.Flow, linear string, condition tape.Tensor, n int) []tape.Tensor {
	return chunks(f, f.Call(linear, f.Apply(layer.SiLU{}, condition)), n)
}

// modulated records norm(x) (1 + scale) + shift.
func modulated(f *tape.Flow, norm string, x, scale, shift tape.Tensor) tape.Tensor {
	return f.Add(f.Mul(f.Call(norm, x), f.Scale(scale)), shift)
}

// plainLayerNorm returns the norm before a modulation.
func plainLayerNorm(c family.Transformer) tape.Layer {
	return layer.LayerNorm{Size: c.Hidden, NoAffine: true}
}

// turned rotates pairs of (batch, length, heads, size) in float32, by tables of the positions
// (diffusers, embeddings.apply_rotary_emb).
func turned(f *tape.Flow, x, cos, sin tape.Tensor) tape.Tensor {
	half := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: f.Resized(x.Shape, x.Dim(-1)/2)})
	pairs := f.Op(tape.Op{In: []tape.Tensor{x, half}, Shape: x.Shape})
	y := f.Mul(f.In(alloc.Float32, x), cos)
	z := f.Mul(f.In(alloc.Float32, pairs), sin)
	f.Hold(pairs)
	return f.In(x.DType, f.Add(y, z))
}

// headed returns queries, keys and values split into heads. Queries and keys are normed if there
// are norms.
func headed(c family.Transformer, f *tape.Flow, x tape.Tensor, names layer.AttentionNames) [3]tape.Tensor {
	var y [3]tape.Tensor
	for i, name := range []string{names.Q, names.K, names.V} {
		y[i] = byHeads(c, f, f.Call(name, x))
	}
	if names.QNorm != "" {
		y[0], y[1] = f.Call(names.QNorm, y[0]), f.Call(names.KNorm, y[1])
	}
	return y
}

func byHeads(c family.Transformer, f *tape.Flow, x tape.Tensor) tape.Tensor {
	return f.View(x, x.Dim(0), x.Dim(1), c.Heads, c.HeadWidth())
}

// attended records attention over tensors split into heads. If there are tables, queries and keys
// are rotated first.
func attended(c family.Transformer, f *tape.Flow, qkv [3]tape.Tensor, tables []tape.Tensor) tape.Tensor {
	for i := range min(2, len(tables)) {
		qkv[i] = turned(f, qkv[i], tables[0], tables[1])
	}
	var flat [3]tape.Tensor
	for i, x := range qkv {
		flat[i] = f.View(x, x.Dim(0), x.Dim(1), c.Heads*c.HeadWidth())
	}
	y := layer.ScaledDotProduct(f.Tape, flat[0], flat[1], flat[2], c.Heads, c.HeadWidth())
	f.Hold(qkv[:]...)
	return y
}

// tables returns the rotary tables for this number of positions.
func tables(c family.Transformer, f *tape.Flow, positions int) []tape.Tensor {
	cos := f.Const(alloc.Float32, 1, positions, 1, c.HeadWidth())
	return []tape.Tensor{cos, f.Const(alloc.Float32, 1, positions, 1, c.HeadWidth())}
}

// imageMLP is the MLP of diffusers' transformers.
func imageMLP(c family.Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELUTanh), Names: &[3]string{"net.0.proj", "net.0", "net.2"}}
}

// stretch returns the first n positions of x. A Linear copies them, unless there is only one sequence.
func stretch(f *tape.Flow, x tape.Tensor, n int) tape.Tensor {
	y := f.Part(x, 1, n)
	if x.Dim(0) > 1 {
		y = f.Copy(y)
	}
	return y
}

// encoded is the text, which a denoiser's blocks read and change together with the image.
var encoded tape.Slot[tape.Tensor]

// denoiserSettings reads the numbers that all image-making transformers of diffusers have in
// common. Defaults are those of src/diffusers/models/transformers there.
func denoiserSettings(c *family.Config, a *family.Model, heads, headSize, blocks, channels, patch int) {
	d := &Denoiser{}
	a.Own = d
	c.Number(&a.Heads, "num_attention_heads", heads)
	c.Number(&a.HeadSize, "attention_head_dim", headSize)
	c.Number(&a.Blocks, "num_layers", blocks)
	c.Number(&a.Channels, "in_channels", channels)
	c.Number(&a.Patch, "patch_size", patch)
	c.Number(&d.Out, "out_channels", a.Channels)
	c.Times(&a.Hidden, "attention_head_dim", a.Heads, float64(a.HeadSize))
}

// Denoiser is what a transformer that makes images or videos from noise has besides the numbers of a
// Transformer (Flux, Flux2, QwenImage, SD3, PixArt, Wan, HunyuanVideo, LTXVideo, ZImage). In FLUX, Blocks counts the blocks with two
// streams. Channels are those of the input.
//
// The layers read two inputs: the noisy image, and the text as its encoder returns it, (batch,
// length, TextDim). FLUX and Qwen-Image read patches, (batch, positions, Channels), the others (batch,
// Channels, height, width). Timesteps, and other inputs of a few numbers for each image, are left
// out.
type Denoiser struct {
	TextDim      int  // width of the text encoder's output
	PooledDim    int  // width of its pooled output (Flux, SD3)
	DualBlocks   int  // the first blocks, in which the image also attends to itself alone (SD3)
	SingleBlocks int  // blocks with one stream, after those with two (Flux, Flux2)
	Guided       bool // the guidance strength is embedded (Flux, Flux2)
	Sized        bool // the image's size and ratio are embedded (PixArt)
	Along        int  // latent frames of a patch (Wan, HunyuanVideo)
	TimeDim      int  // numbers that encode a timestep; 0 means 256 (Wan)
	Rotary       int  // positions of the rotary tables along each axis (Wan)
	NormsCross   bool // there is a norm before the attention to the text (Wan), or norms have weights (LTXVideo)
	NoBias       bool // queries, keys and values have no biases (LTXVideo)
	NoOutBias    bool // nor has the output of attention (LTXVideo)
	ImageDim     int  // width of the embedded image from which a video begins; 0 means none (Wan)
	AddedDim     int  // width of it where blocks attend to it; 0 means that they do not (Wan)
	// ImagePositions are learned positions of that image; 0 means none (Wan).
	ImagePositions int
	Refiners       int // blocks through which the text runs first (HunyuanVideo, Z-Image)
	Out            int // channels of the output; 0 means Channels
}

// timed is the number of sines and cosines that encode a timestep.
func (d Denoiser) timed() int { return setting.Or(d.TimeDim, timeFeatures) }

// numbersOf returns the model's Denoiser, or nil.
func numbersOf(a *family.Model) *Denoiser { return family.Own[Denoiser](a.Transformer) }

// Usual lengths of a text: for FLUX and Qwen-Image, and for PixArt-Sigma. For Stable Diffusion 3 it
// is 333.
const (
	usualTokens  = 512
	usualCaption = 300
)

// referencePositions are the positions of a reference image: pipelines enlarge or shrink each to some 1024 x 1024 pixels
// (diffusers 0.42, pipeline_flux2.py, pipeline_flux_kontext.py and pipeline_qwenimage_edit_plus.py).
const referencePositions = 4096

// positionsInput returns a noisy image as positions, each of four pixels of the latent image, those of the images that it refers
// to, and a text.
func positionsInput(a *family.Model, batch, length int) []family.Input {
	side := a.LatentSide()
	positions := side*side/4 + a.References*referencePositions
	return []family.Input{family.Reals(batch, positions, a.Channels), family.Reals(batch, cmp.Or(length, usualTokens), numbersOf(a).TextDim)}
}

// imageInput returns a noisy latent image and a text.
func imageInput(a *family.Model, batch, length int) []family.Input {
	side := a.LatentSide()
	return []family.Input{family.Reals(batch, a.Channels, side, side), family.Reals(batch, cmp.Or(length, usualCaption), numbersOf(a).TextDim)}
}

// videoInput returns a noisy latent video, and a text of so many tokens of this width.
func videoInput(a *family.Model, batch, tokens, width int) []family.Input {
	side := a.LatentSide()
	return []family.Input{family.Reals(batch, a.Channels, a.LatentFrames(), side, side), family.Reals(batch, tokens, width)}
}
