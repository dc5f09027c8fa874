package estimate

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Autoencoder makes images of latent images and the other way round (diffusers' AutoencoderKL,
// arXiv:2112.10752). Its layers decode: they read (batch, Latent, height, width) and return images 2^(n-1) times as
// high and wide for n Channels. The encoder's weights are there, and it does not run.
type Autoencoder struct {
	Channels    []int // of the encoder's blocks, such as 128, 256, 512 and 512
	Latent      int   // channels of a latent image
	Image       int   // channels of an image; 0 means 3
	Depth       int   // residual blocks in each of the encoder's blocks, of which the decoder's have one more; 0 means 2
	Groups      int   // of the norms; 0 means 32
	NoQuant     bool  // there is no convolution after the encoder and before the decoder
	NoAttention bool  // in the middle of both
	// Upcast makes enlarging bfloat16 compute in float32, as diffusers did until September 2024
	// (github.com/huggingface/diffusers/pull/9480).
	Upcast bool
}

// maxLevels bounds the blocks of a convolutional model that change the resolution.
const maxLevels = 16

// Layers returns the model's layers. What is wrong with the numbers, Model reports.
func (a Autoencoder) Layers() []Layer {
	if len(a.Channels) == 0 || len(a.Channels) > maxLevels {
		return []Layer{wrong("Channels are none or more than 16")}
	}
	if a.Depth < 0 || a.Depth > maxDenoiserBlocks {
		return []Layer{wrong(fmt.Sprintf("Depth is %d: want 0 to %d", a.Depth, maxDenoiserBlocks))}
	}
	a.Image, a.Depth, a.Groups = or(a.Image, 3), or(a.Depth, 2), or(a.Groups, 32)
	parts := Sequential{Named{"encoder", a.encoder()}}
	decode := []string{"decoder"}
	if !a.NoQuant {
		twice := 2 * min(a.Latent, maxField/2)
		parts = append(parts, Named{"quant_conv", Conv2d{In: twice, Out: twice, Kernel: 1}}, Named{"post_quant_conv", Conv2d{In: a.Latent, Out: a.Latent, Kernel: 1}})
		decode = []string{"post_quant_conv", "decoder"}
	}
	parts = append(parts, Named{"decoder", a.decoder()})
	return []Layer{inline{Module{Name: "Autoencoder", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		for _, name := range decode {
			x = f.Call(name, x)
		}
		return x
	}}}}
}

func (a Autoencoder) encoder() Layer {
	last := len(a.Channels) - 1
	parts := Sequential{Named{"conv_in", threeByThree(a.Image, a.Channels[0])}}
	in := a.Channels[0]
	for i, out := range a.Channels {
		block := a.resnets(in, out, a.Depth)
		if i < last {
			block = append(block, Named{"downsamplers.0", Sequential{Named{"conv", Conv2d{In: out, Out: out, Kernel: 3, Stride: 2}}}})
		}
		parts, in = append(parts, Named{"down_blocks." + strconv.Itoa(i), block}), out
	}
	return append(append(parts, a.middle(in)), a.end(in, 2*min(a.Latent, maxField/2))...)
}

func (a Autoencoder) decoder() Layer {
	in := a.Channels[len(a.Channels)-1]
	parts := Sequential{Named{"conv_in", threeByThree(a.Latent, in)}, a.middle(in)}
	for i, out := range slices.Backward(a.Channels) {
		block := a.resnets(in, out, a.Depth+1)
		if i > 0 {
			block = append(block, Named{"upsamplers.0", Sequential{inline{enlarged{a.Upcast}}, Named{"conv", threeByThree(out, out)}}})
		}
		parts, in = append(parts, Named{"up_blocks." + strconv.Itoa(len(a.Channels)-1-i), block}), out
	}
	return append(parts, a.end(in, a.Image)...)
}

// resnets are n residual blocks.
func (a Autoencoder) resnets(in, out, n int) Sequential {
	var parts Sequential
	for i := range n {
		parts, in = append(parts, Named{"resnets." + strconv.Itoa(i), resnet{in: in, out: out, groups: a.Groups, copied: !a.NoAttention}.layer()}), out
	}
	return parts
}

// middle is the block of the lowest resolution.
func (a Autoencoder) middle(n int) Named {
	block := resnet{in: n, out: n, groups: a.Groups}.layer()
	parts := Sequential{Named{"resnets.0", block}}
	if !a.NoAttention {
		parts = append(parts, Named{"attentions.0", placesAttention(n, a.Groups)})
	}
	return Named{"mid_block", append(parts, Named{"resnets.1", block})}
}

func (a Autoencoder) end(in, out int) Sequential {
	return Sequential{Named{"conv_norm_out", GroupNorm{Groups: a.Groups, Channels: in}}, Named{"conv_act", SiLU{}}, Named{"conv_out", threeByThree(in, out)}}
}

func threeByThree(in, out int) Layer { return Conv2d{In: in, Out: out, Kernel: 3, Padding: 1} }

// resnet is diffusers' ResnetBlock2D. With a timestep it is called with its embedding.
type resnet struct {
	in, out, time, groups int
	copied                bool // the input of the shortcut is copied in training, since its channels come last in memory
}

func (l resnet) layer() Layer {
	parts := Sequential{Named{"norm1", GroupNorm{Groups: l.groups, Channels: l.in}}, Named{"conv1", threeByThree(l.in, l.out)}}
	if l.time > 0 {
		parts = append(parts, Named{"time_emb_proj", Linear{In: l.time, Out: l.out}})
	}
	parts = append(parts, Named{"norm2", GroupNorm{Groups: l.groups, Channels: l.out}}, Named{"conv2", threeByThree(l.out, l.out)})
	if l.in != l.out {
		parts = append(parts, Named{"conv_shortcut", Conv2d{In: l.in, Out: l.out, Kernel: 1}})
	}
	return Module{Name: "ResnetBlock", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		y := f.Call("conv1", f.Apply(SiLU{}, f.Call("norm1", x)))
		if l.time > 0 {
			time := f.Call("time_emb_proj", f.Apply(SiLU{}, f.Beside(0)))
			y = f.Add(y, f.View(time, time.Dim(0), l.out, 1, 1))
		}
		y = f.Call("conv2", f.Apply(SiLU{}, f.Call("norm2", y)))
		if l.in != l.out {
			if l.copied {
				x = f.Op(Op{In: []Tensor{x}, Shape: x.Shape, PassGrad: true, TrainingOnly: true})
			}
			x = f.Call("conv_shortcut", x)
		}
		return f.Scale(f.Add(x, y)) // divided by a number that is mostly 1
	}}
}

// placesAttention is the attention of one head between the places of an image. It leaves the channels last in
// memory.
func placesAttention(n, groups int) Layer {
	linear := Linear{In: n, Out: n}
	parts := Sequential{Named{"group_norm", GroupNorm{Groups: groups, Channels: n}}, Named{"to_q", linear}, Named{"to_k", linear}, Named{"to_v", linear}, Named{"to_out.0", linear}}
	return Module{Name: "Attention", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		y := f.Call("group_norm", f.View(x, x.Dim(0), n, -1))
		y = f.Permute(y, 0, 2, 1)
		var qkv [3]Tensor
		for i, name := range []string{"to_q", "to_k", "to_v"} {
			qkv[i] = f.Call(name, f.Copy(y))
		}
		z := f.Call("to_out.0", f.Attention(qkv[0], qkv[1], qkv[2], 1, n))
		f.hold(qkv[:]...)
		return f.Scale(f.Add(f.View(f.Permute(z, 0, 2, 1), x.Shape...), x))
	}}
}

// enlarged is an image twice as high and wide.
type enlarged struct{ upcast bool }

// Declare implements Layer.
func (enlarged) Declare(*Declaration) {}

// Forward implements Layer.
func (l enlarged) Forward(t *Tape, x Tensor) (Tensor, error) {
	f := &Flow{t: t}
	d := x.DType
	if l.upcast {
		x = f.in(alloc.Float32, x)
	}
	y := f.in(d, f.Apply(Upsample{Scale: 2}, x))
	return y, f.err
}
