package diffusion

import (
	"fmt"
	"math/bits"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var hunyuanAutoencoderFamily = &family.Family{
	Name:  "autoencoder of HunyuanVideo",
	Types: []family.Type{{Name: "AutoencoderKLHunyuanVideo", Read: readHunyuanAutoencoder}},
}

// HunyuanAutoencoder makes videos from latent videos (arXiv:2412.03603; diffusers' AutoencoderKLHunyuanVideo): the
// Autoencoder of images with convolutions over time, which see no later frame. It decodes a few latent frames at once.
type HunyuanAutoencoder struct {
	Channels    []int // of the encoder's blocks
	Latent      int   // channels of a latent frame
	In, Out     int   // channels of a frame
	Depth       int   // residual blocks in each of the encoder's blocks; the decoder's have one more
	Groups      int   // of the norms
	NoAttention bool  // there is no attention in the middle
	Halvings    int   // blocks that halve the resolution, from the first on
	Shortenings int   // blocks that halve the frames, up to the last but one
	Clip
}

// Latent frames that are decoded at once, if there are more than tileFrames, and by how many each such tile follows the one
// before (diffusers, autoencoder_kl_hunyuan_video.py, _temporal_tiled_decode).
const (
	tileFrames = 4
	tileStride = 3
)

// Layers returns the model's layers. Model reports numbers that make no sense.
func (a HunyuanAutoencoder) Layers() []tape.Layer {
	if tooDeep(len(a.Channels), a.Depth) {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("there are %d Channels and %d blocks at each: want 1 to %d", len(a.Channels), a.Depth, maxLevels))}
	}
	twice := setting.Product(a.Latent, 2)
	parts := tape.Sequential{
		tape.As("encoder", a.encoder()), tape.As("quant_conv", cube(twice, twice, 1)),
		tape.As("post_quant_conv", cube(a.Latent, a.Latent, 1)), tape.As("decoder", a.decoder()),
	}
	return decoding("Autoencoder", parts, a.decode)
}

// decode decodes tiles of frames that overlap, and joins them.
func (a HunyuanAutoencoder) decode(f *tape.Flow, z tape.Tensor) tape.Tensor {
	f.Rank(z, 5, "(batch, channels, frames, height, width)")
	frames := z.Dim(2)
	if frames <= tileFrames {
		return f.Call("decoder", f.Call("post_quant_conv", z))
	}
	var tiles, shown []tape.Tensor
	for i := 0; i < frames; i += tileStride {
		y := f.Call("decoder", f.Call("post_quant_conv", f.Part(lastFrames(f.Tape, z, frames-i), 2, min(frames-i, tileFrames+1))))
		kept := tileStride * a.Rate
		if i == 0 {
			kept++
		} else if y.Dim(2) > 1 {
			y = f.From(y, 2, 1)
		} else {
			break // the last tile is a frame that the one before has
		}
		tiles, shown = append(tiles, y), append(shown, f.Part(y, 2, min(kept, y.Dim(2))))
	}
	out := f.Cat(2, shown...)
	f.Hold(tiles...)
	return out
}

// changes says by how much block i changes resolution and frames.
func (a HunyuanAutoencoder) changes(i int) (space, time int) {
	space, time = 1, 1
	if i < a.Halvings {
		space = 2
	}
	if last := len(a.Channels) - 1; i >= last-a.Shortenings && i < last {
		time = 2
	}
	return space, time
}

func (a HunyuanAutoencoder) encoder() tape.Layer {
	in := a.Channels[0]
	parts := tape.Sequential{tape.As("conv_in", causal(a.In, in, 3))}
	for i, out := range a.Channels {
		block := a.resnets(in, out, a.Depth)
		if space, time := a.changes(i); space*time > 1 {
			block = append(block, tape.As("downsamplers.0", tape.Sequential{tape.As("conv", causal(out, out, 3))}))
		}
		parts, in = append(parts, tape.As("down_blocks."+strconv.Itoa(i), block)), out
	}
	return append(append(parts, a.middle(in)), a.end(in, setting.Product(a.Latent, 2))...)
}

func (a HunyuanAutoencoder) decoder() tape.Layer {
	in := a.Channels[len(a.Channels)-1]
	parts := tape.Sequential{tape.As("conv_in", causal(a.Latent, in, 3)), a.middle(in)}
	for i := range a.Channels {
		out := a.Channels[len(a.Channels)-1-i]
		block := a.resnets(in, out, a.Depth+1)
		if space, time := a.changes(i); space*time > 1 {
			block = append(block, tape.As("upsamplers.0", tape.Module{Name: "Upsample", Parts: tape.Sequential{tape.As("conv", causal(out, out, 3))}, Run: grown(space, time)}))
		}
		parts, in = append(parts, tape.As("up_blocks."+strconv.Itoa(i), holding{block})), out
	}
	return append(parts, a.end(in, a.Out)...)
}

// causal is a convolution before whose first frame that frame is repeated, as pixels are at the borders.
func causal(in, out, kernel int) tape.Layer {
	return tape.Module{Name: "CausalConv3d", Parts: tape.Sequential{tape.As("conv", cube(in, out, kernel))}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv", padded(f.Tape, x, kernel-1, kernel-1, kernel-1))
		f.Hold(x)
		return y
	}}
}

// grown doubles the first frame's resolution, and then that of the others together with their number.
func grown(space, time int) func(f *tape.Flow, x tape.Tensor) tape.Tensor {
	return func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		larger := func(x tape.Tensor, time int) tape.Tensor {
			return f.Resize(x, time*x.Dim(2), space*x.Dim(3), space*x.Dim(4))
		}
		if x.Dim(2) == 1 {
			return f.Call("conv", larger(x, 1))
		}
		first := larger(f.Part(x, 2, 1), 1)
		others := f.Copy(f.From(x, 2, 1))
		rest := larger(others, time)
		y := f.Cat(2, first, rest)
		z := f.Call("conv", y)
		f.Hold(first, rest)
		return z
	}
}

func (a HunyuanAutoencoder) resnets(in, out, n int) tape.Sequential {
	var parts tape.Sequential
	for i := range n {
		parts, in = append(parts, tape.As("resnets."+strconv.Itoa(i), a.resnet(in, out))), out
	}
	return parts
}

func (a HunyuanAutoencoder) resnet(in, out int) tape.Layer {
	parts := tape.Sequential{
		tape.As("norm1", layer.GroupNorm{Groups: a.Groups, Channels: in}), tape.As("conv1", causal(in, out, 3)),
		tape.As("norm2", layer.GroupNorm{Groups: a.Groups, Channels: out}), tape.As("conv2", causal(out, out, 3)),
	}
	if in != out {
		parts = append(parts, tape.As("conv_shortcut", causal(in, out, 1)))
	}
	return tape.Module{Name: "ResnetBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv1", f.Apply(layer.SiLU{}, f.Call("norm1", x)))
		y = f.Call("conv2", f.Apply(layer.SiLU{}, f.Call("norm2", y)))
		short := x
		if in != out {
			short = f.Call("conv_shortcut", x)
		}
		z := f.Add(y, short)
		f.Hold(x)
		return z
	}}
}

// middle returns the block at the lowest resolution, in which attention sees no later frame.
func (a HunyuanAutoencoder) middle(n int) tape.Named {
	parts := tape.Sequential{tape.As("resnets.0", a.resnet(n, n))}
	if !a.NoAttention {
		parts = append(parts, tape.As("attentions.0", positionAttention(n, a.Groups)))
	}
	parts = append(parts, tape.As("resnets.1", a.resnet(n, n)))
	return tape.As("mid_block", tape.Module{Name: "MidBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("resnets.0", x)
		if !a.NoAttention {
			positions := y.Dim(2) * y.Dim(3) * y.Dim(4)
			mask := f.In(f.Activation(), f.Scale(f.Const(alloc.Float32, positions, positions)))
			flat := f.Call("attentions.0", f.View(y, y.Dim(0), n, positions, 1))
			f.Hold(mask)
			y = f.Copy(f.View(flat, y.Shape...))
		}
		z := f.Call("resnets.1", y)
		f.Hold(x)
		return z
	}})
}

func (a HunyuanAutoencoder) end(in, out int) tape.Sequential {
	return tape.Sequential{tape.As("conv_norm_out", layer.GroupNorm{Groups: a.Groups, Channels: in}), tape.As("conv_act", layer.SiLU{}), tape.As("conv_out", causal(in, out, 3))}
}

// holding runs parts one after another, whose caller holds the input meanwhile.
type holding struct{ tape.Sequential }

func (holding) Kind() string { return "Sequential" }

func (l holding) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := l.Sequential.Forward(t, x)
	t.Hold(x)
	return y
}

// Inputs are latent videos of the usual size.
func (a HunyuanAutoencoder) Inputs(batch, _ int) []family.Input { return a.inputs(batch, a.Latent) }

// Latents are latent videos of this size.
func (a HunyuanAutoencoder) Latents(batch, side, frames int) []int {
	return []int{batch, a.Latent, frames, side, side}
}

// Resized is the autoencoder for frames of another side.
func (a HunyuanAutoencoder) Resized(side int) (family.Images, error) {
	var err error
	a.Clip, err = a.resized(side)
	return a, err
}

// Filmed is the autoencoder for videos of another length.
func (a HunyuanAutoencoder) Filmed(frames int) (family.Images, error) {
	var err error
	a.Clip, err = a.filmed(frames)
	return a, err
}

func readHunyuanAutoencoder(c *family.Config, a *family.Model) {
	channels, depth, groups := convolutions(c, 2)
	m := HunyuanAutoencoder{Channels: channels, Depth: depth, Groups: groups, NoAttention: !c.Flag("mid_block_add_attention", true)}
	c.Number(&m.In, "in_channels", 3)
	c.Number(&m.Out, "out_channels", 3)
	c.Number(&m.Latent, "latent_channels", 16)
	blockKinds(c, "down_block_types", len(channels), "HunyuanVideoDownBlock3D")
	blockKinds(c, "up_block_types", len(channels), "HunyuanVideoUpBlock3D")
	space, time := c.Whole("spatial_compression_ratio", 8), c.Whole("temporal_compression_ratio", 4)
	if time != 4 {
		c.Unknown("temporal_compression_ratio", fmt.Sprint(time))
	}
	if space < 1 || space > 1<<maxLevels {
		c.Fail("spatial_compression_ratio", "%d is not a number from 1 to %d", space, 1<<maxLevels)
		space = 1
	}
	m.Halvings, m.Shortenings = bits.Len(uint(space))-1, 2
	m.Clip = Clip{Side: 64, Frames: 33, Scale: 1 << min(m.Halvings, len(channels)), Rate: 1 << min(m.Shortenings, len(channels)-1)}
	a.Images = m
}
