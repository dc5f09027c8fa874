package diffusion

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

var autoencoderFamily = &family.Family{
	Name:  "autoencoder",
	Types: []family.Type{{Name: "AutoencoderKL", Read: readAutoencoder}},
}

// Autoencoder makes images from latent images, and the reverse (diffusers' AutoencoderKL,
// arXiv:2112.10752). Its layers decode: they read (batch, Latent, height, width) and return images
// 2^(n-1) times as high and wide, where n is the number of Channels. The encoder's weights are
// counted, but it does not run.
type Autoencoder struct {
	Channels    []int // of the encoder's blocks, such as 128, 256, 512 and 512
	Decoder     []int // of the decoder's blocks, in the order of the encoder's; nil means those
	Latent      int   // channels of a latent image
	Side        int   // usual side of its latent images
	Image       int   // channels of an image; 0 means 3
	Out         int   // channels of an image that it makes; 0 means Image
	Depth       int   // residual blocks in each of the encoder's blocks; the decoder's have one more; 0 means 2
	Groups      int   // of the norms; 0 means 32
	NoQuant     bool  // there is no convolution after the encoder and before the decoder
	Quant       Quant // which of these convolutions there are, unless NoQuant
	Normed      int   // channels of the norm that the pipeline applies to latent images; 0 means none
	NoAttention bool  // both have no attention in the middle
	// Upcast computes the enlargement of bfloat16 images in float32, as diffusers did until
	// September 2024 (github.com/huggingface/diffusers/pull/9480).
	Upcast bool
}

// Quant says which convolutions an autoencoder has between its parts and the latent images.
type Quant uint8

const (
	BothQuant   Quant = iota
	OnlyEncoder       // after the encoder
	OnlyDecoder       // before the decoder
)

// maxLevels bounds the blocks of a convolutional model that change the resolution.
const maxLevels = 16

// Layers returns the model's layers. Model reports numbers that make no sense.
func (a Autoencoder) Layers() []tape.Layer {
	if a.Decoder == nil {
		a.Decoder = a.Channels
	}
	if len(a.Channels) == 0 || max(len(a.Channels), len(a.Decoder)) > maxLevels || len(a.Decoder) == 0 {
		return []tape.Layer{tape.Wrong("Channels are none or more than 16")}
	}
	if a.Depth < 0 || a.Depth > maxDenoiserBlocks {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("Depth is %d: want 0 to %d", a.Depth, maxDenoiserBlocks))}
	}
	a.Image, a.Depth, a.Groups = setting.Or(a.Image, 3), setting.Or(a.Depth, 2), setting.Or(a.Groups, 32)
	parts := tape.Sequential{tape.As("encoder", a.encoder())}
	decode := []string{"decoder"}
	if !a.NoQuant && a.Quant != OnlyDecoder {
		twice := 2 * min(a.Latent, setting.MaxField/2)
		parts = append(parts, tape.As("quant_conv", layer.Conv2d{In: twice, Out: twice, Kernel: 1}))
	}
	if !a.NoQuant && a.Quant != OnlyEncoder {
		parts = append(parts, tape.As("post_quant_conv", layer.Conv2d{In: a.Latent, Out: a.Latent, Kernel: 1}))
		decode = []string{"post_quant_conv", "decoder"}
	}
	if a.Normed != 0 {
		parts = append(parts, tape.As("bn", layer.BatchNorm{Features: a.Normed, NoAffine: true}))
	}
	parts = append(parts, tape.As("decoder", a.decoder()))
	return []tape.Layer{tape.Inline(tape.Module{Name: "Autoencoder", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		for _, name := range decode {
			x = f.Call(name, x)
		}
		return x
	}})}
}

func (a Autoencoder) encoder() tape.Layer {
	last := len(a.Channels) - 1
	parts := tape.Sequential{tape.As("conv_in", threeByThree(a.Image, a.Channels[0]))}
	in := a.Channels[0]
	for i, out := range a.Channels {
		block := a.resnets(in, out, a.Depth)
		if i < last {
			block = append(block, tape.As("downsamplers.0", tape.Sequential{tape.As("conv", layer.Conv2d{In: out, Out: out, Kernel: 3, Stride: 2})}))
		}
		parts, in = append(parts, tape.As("down_blocks."+strconv.Itoa(i), block)), out
	}
	return append(append(parts, a.middle(in)), a.end(in, 2*min(a.Latent, setting.MaxField/2))...)
}

func (a Autoencoder) decoder() tape.Layer {
	in := a.Decoder[len(a.Decoder)-1]
	parts := tape.Sequential{tape.As("conv_in", threeByThree(a.Latent, in)), a.middle(in)}
	for i, out := range slices.Backward(a.Decoder) {
		block := a.resnets(in, out, a.Depth+1)
		if i > 0 {
			block = append(block, tape.As("upsamplers.0", tape.Sequential{tape.Inline(enlarged{a.Upcast}), tape.As("conv", lastConv(out, out, !a.NoAttention))}))
		}
		parts, in = append(parts, tape.As("up_blocks."+strconv.Itoa(len(a.Decoder)-1-i), block)), out
	}
	return append(parts, a.end(in, setting.Or(a.Out, a.Image))...)
}

// resnets returns n residual blocks.
func (a Autoencoder) resnets(in, out, n int) tape.Sequential {
	var parts tape.Sequential
	for i := range n {
		parts, in = append(parts, tape.As("resnets."+strconv.Itoa(i), resnet{in: in, out: out, groups: a.Groups, last: !a.NoAttention}.layer())), out
	}
	return parts
}

// middle returns the block at the lowest resolution.
func (a Autoencoder) middle(n int) tape.Named {
	block := resnet{in: n, out: n, groups: a.Groups}
	parts := tape.Sequential{tape.As("resnets.0", block.layer())}
	block.last = !a.NoAttention // which leaves them so
	if !a.NoAttention {
		parts = append(parts, tape.As("attentions.0", positionAttention(n, a.Groups)))
	}
	return tape.As("mid_block", append(parts, tape.As("resnets.1", block.layer())))
}

func (a Autoencoder) end(in, out int) tape.Sequential {
	return tape.Sequential{tape.As("conv_norm_out", layer.GroupNorm{Groups: a.Groups, Channels: in}), tape.As("conv_act", layer.SiLU{}), tape.As("conv_out", lastConv(in, out, !a.NoAttention))}
}

func threeByThree(in, out int) tape.Layer { return lastConv(in, out, false) }

// lastConv is threeByThree, of images whose channels come last in memory if last.
func lastConv(in, out int, last bool) tape.Layer {
	return layer.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1, Last: last}
}

// resnet is diffusers' ResnetBlock2D. If it has a timestep, it is called with its embedding.
type resnet struct {
	in, out, time, groups int
	last                  bool // channels come last in memory, so that training copies the shortcut's input
}

func (l resnet) layer() tape.Layer {
	parts := tape.Sequential{tape.As("norm1", layer.GroupNorm{Groups: l.groups, Channels: l.in}), tape.As("conv1", lastConv(l.in, l.out, l.last))}
	if l.time > 0 {
		parts = append(parts, tape.As("time_emb_proj", layer.Linear{In: l.time, Out: l.out}))
	}
	parts = append(parts, tape.As("norm2", layer.GroupNorm{Groups: l.groups, Channels: l.out}), tape.As("conv2", lastConv(l.out, l.out, l.last)))
	if l.in != l.out {
		parts = append(parts, tape.As("conv_shortcut", layer.Conv2d{In: l.in, Out: l.out, Kernel: 1, Last: l.last}))
	}
	return tape.Module{Name: "ResnetBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv1", f.Apply(layer.SiLU{}, f.Call("norm1", x)))
		if l.time > 0 {
			time := f.Call("time_emb_proj", f.Apply(layer.SiLU{}, f.Beside(0)))
			y = f.Add(y, f.View(time, time.Dim(0), l.out, 1, 1))
		}
		y = f.Call("conv2", f.Apply(layer.SiLU{}, f.Call("norm2", y)))
		if l.in != l.out {
			if l.last {
				x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true, TrainingOnly: true})
			}
			x = f.Call("conv_shortcut", x)
		}
		return f.Scale(f.Add(x, y)) // divided by a number, mostly 1
	}}
}

// positionAttention returns attention with one head between the positions of an image. It leaves the
// channels last in memory.
func positionAttention(n, groups int) tape.Layer {
	linear := layer.Linear{In: n, Out: n}
	parts := tape.Sequential{tape.As("group_norm", layer.GroupNorm{Groups: groups, Channels: n}), tape.As("to_q", linear), tape.As("to_k", linear), tape.As("to_v", linear), tape.As("to_out.0", linear)}
	return tape.Module{Name: "Attention", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("group_norm", f.View(x, x.Dim(0), n, -1))
		y = f.Permute(y, 0, 2, 1)
		var qkv [3]tape.Tensor
		for i, name := range []string{"to_q", "to_k", "to_v"} {
			qkv[i] = f.Call(name, f.Copy(y))
		}
		z := f.Call("to_out.0", layer.ScaledDotProduct(f.Tape, qkv[0], qkv[1], qkv[2], 1, n))
		f.Hold(qkv[:]...)
		return f.Scale(f.Add(f.View(f.Permute(z, 0, 2, 1), x.Shape...), x))
	}}
}

// enlarged makes an image twice as high and wide.
type enlarged struct{ upcast bool }

func (l enlarged) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	d := x.DType
	if l.upcast {
		x = t.In(alloc.Float32, x)
	}
	return t.In(d, t.Apply(layer.Upsample(2), x))
}

// Inputs are latent images of the usual size.
func (a Autoencoder) Inputs(batch, _ int) []family.Input {
	return []family.Input{family.Reals(batch, a.Latent, a.Side, a.Side)}
}

// Resized is the autoencoder for images of another side.
func (a Autoencoder) Resized(side int) (family.Images, error) {
	_, err := family.LatentSide(side, 1)
	a.Side = side >> (len(a.Channels) - 1)
	return a, err
}

// Latents are latent images of this side.
func (a Autoencoder) Latents(batch, side, _ int) []int { return []int{batch, a.Latent, side, side} }

// Tiles are of the usual size, and overlap by a quarter.
func (a Autoencoder) Tiles() (side, step int) { return a.Side, a.Side - a.Side/4 }

func readAutoencoder(c *family.Config, a *family.Model) {
	m := imageAutoencoder(c)
	switch {
	case m.Quant != BothQuant:
		c.Unknown("use_quant_conv, use_post_quant_conv", "one of the two")
	case m.Out != m.Image:
		c.Unknown("out_channels", "another number than in_channels")
	}
	a.Images = m
}

// imageAutoencoder reads what all autoencoders of images have.
func imageAutoencoder(c *family.Config) Autoencoder {
	widths, depth, groups := convolutions(c, 1)
	m := Autoencoder{Channels: widths, Depth: depth, Groups: groups, NoAttention: !c.Flag("mid_block_add_attention", true)}
	switch encodes, decodes := c.Flag("use_quant_conv", true), c.Flag("use_post_quant_conv", true); {
	case encodes && !decodes:
		m.Quant = OnlyEncoder
	case decodes && !encodes:
		m.Quant = OnlyDecoder
	default:
		m.NoQuant = !encodes
	}
	sample := 0
	c.Number(&m.Image, "in_channels", 3)
	c.Number(&m.Out, "out_channels", 3)
	c.Number(&m.Latent, "latent_channels", 4)
	c.Number(&sample, "sample_size", 32)
	blockKinds(c, "down_block_types", len(widths), "DownEncoderBlock2D")
	blockKinds(c, "up_block_types", len(widths), "UpDecoderBlock2D")
	m.Side = max(1, sample>>(len(widths)-1))
	return m
}
