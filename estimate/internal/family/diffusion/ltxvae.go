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

var ltxAutoencoderFamily = &family.Family{
	Name:  "autoencoder of LTX-Video",
	Types: []family.Type{{Name: "AutoencoderKLLTXVideo", Read: readLTXAutoencoder}},
}

// LTXAutoencoder makes videos from latent videos (arXiv:2501.00103; diffusers' AutoencoderKLLTXVideo). Its norms have no
// weights, resolution and frames grow by moving channels there, and the frames are patches of pixels.
type LTXAutoencoder struct {
	Encoder, Decoder LTXBlocks
	Latent           int // channels of a latent frame
	In, Out          int // channels of a frame
	Patch, Along     int // pixels along a side, and frames, that are one position
	Timed            bool
	Clip
}

// LTXBlocks are the blocks of an encoder, or of a decoder from its end to its begin.
type LTXBlocks struct {
	Channels []int    // of each block
	Depths   []int    // residual blocks of each, and of the middle
	Scales   []bool   // which change resolution and frames
	Later    bool     // those of version 0.9.5, which change channels together with the resolution
	Ways     []string // how these do it: "conv", "spatial", "temporal" or "spatiotemporal"
	Noise    []bool   // which add noise, and the middle
	Residual []bool   // which have a shortcut around the change of resolution
	Factors  []int    // by how much a change of resolution divides the channels
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (a LTXAutoencoder) Layers() []tape.Layer {
	e, d := a.Encoder, a.Decoder
	if tooDeep(len(e.Channels), e.Depths...) || tooDeep(len(d.Channels), d.Depths...) || !e.fit(e.blocks()) || !d.fit(len(d.Channels)) || d.short() {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("there are %d and %d Channels: want 1 to %d, and settings for each", len(e.Channels), len(d.Channels), maxLevels))}
	}
	parts := tape.Sequential{tape.As("encoder", a.encoder()), tape.As("decoder", a.decoder()), tape.Inline(ltxStatistics{a.Latent})}
	return decoding("Autoencoder", parts, func(f *tape.Flow, z tape.Tensor) tape.Tensor {
		f.Rank(z, 5, "(batch, channels, frames, height, width)")
		return f.Call("decoder", z)
	})
}

// blocks is the number of the encoder's blocks.
func (b LTXBlocks) blocks() int {
	if b.Later {
		return len(b.Channels) - 1
	}
	return len(b.Channels)
}

// fit reports whether there are settings for n blocks and the middle.
func (b LTXBlocks) fit(n int) bool { return n > 0 && len(b.Depths) > n && len(b.Scales) >= n }

// short reports whether there are too few settings for the decoder's blocks.
func (b LTXBlocks) short() bool {
	n := len(b.Channels)
	return len(b.Noise) <= n || len(b.Residual) < n || len(b.Factors) < n || slices.Contains(b.Factors, 0)
}

// ltxStatistics has the means and deviations of latent frames.
type ltxStatistics struct{ channels int }

func (l ltxStatistics) Declare(d *tape.Declaration) {
	d.Buffer("latents_mean", l.channels)
	d.Buffer("latents_std", l.channels)
}

func (ltxStatistics) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

func (a LTXAutoencoder) encoder() tape.Layer {
	b := a.Encoder
	out := b.Channels[0]
	parts := tape.Sequential{tape.As("conv_in", ltxConv(setting.Product(a.In, a.Patch*a.Patch), out, 3))}
	for i := range b.blocks() {
		in := out
		switch {
		case b.Later:
			out = b.Channels[i+1]
		case i+1 < b.blocks():
			out = b.Channels[i+1]
		}
		var block tape.Sequential
		for j := range b.Depths[i] {
			block = append(block, tape.As("resnets."+strconv.Itoa(j), ltxResnet{in: in, out: in}.layer()))
		}
		if b.Scales[i] {
			block = append(block, tape.As("downsamplers.0", b.down(i, in, out)))
		}
		if !b.Later && in != out {
			block = append(block, tape.As("conv_out", ltxResnet{in: in, out: out}.layer()))
		}
		parts = append(parts, tape.As("down_blocks."+strconv.Itoa(i), block))
	}
	middle := ltxStage{resnets: slices.Repeat([]ltxResnet{{in: out, out: out}}, b.Depths[len(b.Depths)-1])}
	return append(parts, tape.As("mid_block", middle.layer()), tape.As("conv_out", ltxConv(out, min(a.Latent, setting.MaxField-1)+1, 3)))
}

// down changes the resolution of block i. It does not run.
func (b LTXBlocks) down(i, in, out int) tape.Layer {
	if b.Later && b.Ways[i] != "conv" {
		return tape.Sequential{tape.As("conv", ltxConv(in, max(1, out/map[string]int{"spatial": 4, "temporal": 2, "spatiotemporal": 8}[b.Ways[i]]), 3))}
	}
	return ltxConv(in, in, 3)
}

func (a LTXAutoencoder) decoder() tape.Layer {
	b, last := a.Decoder, len(a.Decoder.Channels)-1
	out := b.Channels[last]
	middle := ltxStage{resnets: slices.Repeat([]ltxResnet{{in: out, out: out, noise: b.Noise[last+1], timed: a.Timed}}, b.Depths[last+1])}
	if a.Timed {
		middle.timed = out
	}
	parts := tape.Sequential{tape.As("conv_in", ltxConv(a.Latent, out, 3)), tape.As("mid_block", middle.layer())}
	for i := range b.Channels {
		at := last - i
		in := max(1, out/b.Factors[at])
		out = max(1, b.Channels[at]/b.Factors[at])
		one := ltxResnet{in: out, out: out, noise: b.Noise[at], timed: a.Timed}
		stage := ltxStage{resnets: slices.Repeat([]ltxResnet{one}, b.Depths[at])}
		if in != out {
			one.in = in
			stage.first = &one
		}
		if a.Timed {
			stage.timed = in
		}
		if b.Scales[at] {
			stage.up = &ltxUp{in: setting.Product(out, b.Factors[at]), factor: b.Factors[at], residual: b.Residual[at]}
		}
		parts = append(parts, tape.As("up_blocks."+strconv.Itoa(i), stage.layer()))
	}
	parts = append(parts, tape.As("conv_out", ltxConv(out, setting.Product(a.Out, a.Patch*a.Patch), 3)))
	if a.Timed {
		parts = append(parts, tape.As("time_embedder.timestep_embedder", twoLinears(timeFeatures, setting.Product(out, 2), layer.SiLU{}, true)),
			tape.Inline(layer.Learned{Name: "timestep_scale_multiplier", Shape: alloc.Shape{}}), tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{2, out}}))
	}
	return tape.Module{Name: "Decoder", Parts: parts, Run: func(f *tape.Flow, z tape.Tensor) tape.Tensor {
		x := f.Call("mid_block", f.Call("conv_in", z))
		for i := range b.Channels {
			y := f.Call("up_blocks."+strconv.Itoa(i), x)
			f.Hold(x)
			x = y
		}
		x = ltxNorm(f, x)
		if a.Timed {
			m := ltxCondition(f, x.Dim(0), out, 2)
			x = f.Add(f.Mul(x, f.Scale(m[1])), m[0])
		}
		x = f.Call("conv_out", f.Apply(layer.SiLU{}, x))
		return f.Copy(f.View(x, x.Dim(0), a.Out, x.Dim(2), x.Dim(3)*a.Patch, x.Dim(4)*a.Patch))
	}}
}

// ltxConv is a convolution before and after which the first and the last frame are repeated.
func ltxConv(in, out, kernel int) tape.Layer {
	pad := kernel / 2
	conv := layer.Conv3d{In: in, Out: out, Kernel: kernel, Paddings: [3]int{0, pad, pad}}
	return tape.Module{Name: "CausalConv3d", Parts: tape.Sequential{tape.As("conv", conv)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv", padded(f.Tape, x, kernel-1, 0, 0))
		f.Hold(x)
		return y
	}}
}

// ltxNorm divides the channels of each position by the root of their mean square (diffusers, normalization.RMSNorm).
func ltxNorm(f *tape.Flow, x tape.Tensor) tape.Tensor {
	wide := f.In(alloc.Float32, x)
	squares := f.Op(tape.Op{In: []tape.Tensor{wide}, Shape: x.Shape, DType: alloc.Float32, Keep: []tape.Tensor{wide}})
	means := f.Op(tape.Op{In: []tape.Tensor{squares}, Shape: f.Resized(x.Shape, 1), DType: alloc.Float32})
	y := f.Op(tape.Op{In: []tape.Tensor{x, means}, Shape: x.Shape, DType: alloc.Float32, Keep: []tape.Tensor{x, means}})
	z := f.In(x.DType, y)
	f.Hold(x)
	return z
}

// ltxCondition is the timestep's embedding with the layer's table, in n parts for all positions.
func ltxCondition(f *tape.Flow, batch, channels, n int) []tape.Tensor {
	y := embedTime(f, "time_embedder.timestep_embedder", batch)
	return ltxParts(f, y, channels, n)
}

// ltxParts adds the layer's table to an embedding and splits the sum.
func ltxParts(f *tape.Flow, x tape.Tensor, channels, n int) []tape.Tensor {
	y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), n * channels, 1, 1, 1}, Params: true})
	return f.Split(y, 1, slices.Repeat([]int{channels}, n)...)
}

// ltxResnet is a residual block.
type ltxResnet struct {
	in, out      int
	noise, timed bool
}

func (l ltxResnet) layer() tape.Layer {
	parts := tape.Sequential{tape.As("conv1", ltxConv(l.in, l.out, 3)), tape.As("conv2", ltxConv(l.out, l.out, 3))}
	if l.in != l.out {
		parts = append(parts, tape.As("norm3", layer.LayerNorm{Size: l.in}), tape.As("conv_shortcut", ltxConv(l.in, l.out, 1)))
	}
	var params []tape.Param
	if l.noise {
		params = append(params, tape.Param{Name: "per_channel_scale1", Shape: alloc.Shape{l.in, 1, 1}}, tape.Param{Name: "per_channel_scale2", Shape: alloc.Shape{l.in, 1, 1}})
	}
	if l.timed {
		params = append(params, tape.Param{Name: "scale_shift_table", Shape: alloc.Shape{4, l.in}})
	}
	return tape.Module{Name: "ResnetBlock", Parts: parts, Params: params, Run: l.run}
}

func (l ltxResnet) run(f *tape.Flow, x tape.Tensor) tape.Tensor {
	var m []tape.Tensor
	if l.timed {
		m = ltxParts(f, f.Beside(0), l.in, 4)
	}
	y := x
	for i, conv := range []string{"conv1", "conv2"} {
		y = ltxNorm(f, y)
		if l.timed {
			y = f.Add(f.Mul(y, f.Scale(m[2*i+1])), m[2*i])
		}
		if y = f.Call(conv, f.Apply(layer.SiLU{}, y)); l.noise {
			y = f.Scale(y)
		}
	}
	short := x
	if l.in != l.out {
		short = f.View(f.Call("norm3", f.Copy(f.Permute(x, 0, 2, 3, 4, 1))), x.Shape...)
		short = f.Call("conv_shortcut", short)
	}
	z := f.Add(y, short)
	f.Hold(x)
	return z
}

// ltxStage is a block of the decoder.
type ltxStage struct {
	timed   int        // channels by which the timestep is embedded; 0 means it is not
	first   *ltxResnet // changes the channels; may be nil
	up      *ltxUp
	resnets []ltxResnet
}

func (l ltxStage) layer() tape.Layer {
	var parts tape.Sequential
	if l.timed > 0 {
		parts = append(parts, tape.As("time_embedder.timestep_embedder", twoLinears(timeFeatures, setting.Product(l.timed, 4), layer.SiLU{}, true)))
	}
	if l.first != nil {
		parts = append(parts, tape.As("conv_in", l.first.layer()))
	}
	if l.up != nil {
		parts = append(parts, tape.As("upsamplers.0", l.up.layer()))
	}
	for i, r := range l.resnets {
		parts = append(parts, tape.As("resnets."+strconv.Itoa(i), r.layer()))
	}
	return tape.Module{Name: "Block", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := x
		var beside []tape.Tensor
		if l.timed > 0 {
			beside = []tape.Tensor{embedTime(f, "time_embedder.timestep_embedder", x.Dim(0))}
		}
		if l.first != nil {
			y = f.Call("conv_in", y, beside...)
		}
		if l.up != nil {
			y = f.Call("upsamplers.0", y)
		}
		for i := range l.resnets {
			y = f.Call("resnets."+strconv.Itoa(i), y, beside...)
		}
		f.Hold(x)
		return y
	}}
}

// ltxUp doubles resolution and frames by moving channels there. The first frame stays alone.
type ltxUp struct {
	in, factor int
	residual   bool
}

func (l ltxUp) layer() tape.Layer {
	out := setting.Product(l.in, 8) / l.factor
	return tape.Module{Name: "Upsample", Parts: tape.Sequential{tape.As("conv", ltxConv(l.in, max(1, out), 3))}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		moved := func(x tape.Tensor) tape.Tensor {
			y := f.Copy(f.View(x, x.Dim(0), x.Dim(1)/8, 2*x.Dim(2), 2*x.Dim(3), 2*x.Dim(4)))
			f.Hold(x)
			return y
		}
		var short tape.Tensor
		if l.residual {
			short = moved(x)
			repeated := slices.Clone(short.Shape)
			repeated[1] = out / 8
			short = f.From(f.Op(tape.Op{In: []tape.Tensor{short}, Shape: repeated}), 2, 1)
		}
		y := f.From(moved(f.Call("conv", x)), 2, 1)
		if l.residual {
			y = f.Add(y, short)
		}
		f.Hold(x)
		return y
	}}
}

// Inputs are latent videos of the usual size.
func (a LTXAutoencoder) Inputs(batch, _ int) []family.Input { return a.inputs(batch, a.Latent) }

// Latents are latent videos of this size.
func (a LTXAutoencoder) Latents(batch, side, frames int) []int {
	return []int{batch, a.Latent, frames, side, side}
}

// Resized is the autoencoder for frames of another side.
func (a LTXAutoencoder) Resized(side int) (family.Images, error) {
	var err error
	a.Clip, err = a.resized(side)
	return a, err
}

// Filmed is the autoencoder for videos of another length.
func (a LTXAutoencoder) Filmed(frames int) (family.Images, error) {
	var err error
	a.Clip, err = a.filmed(frames)
	return a, err
}

func readLTXAutoencoder(c *family.Config, a *family.Model) {
	c.Harmless("spatial_compression_ratio", "temporal_compression_ratio", "encoder_causal", "decoder_causal") // frames are padded on both sides instead
	m := LTXAutoencoder{Timed: c.Flag("timestep_conditioning", false)}
	c.Number(&m.In, "in_channels", 3)
	c.Number(&m.Out, "out_channels", 3)
	c.Number(&m.Latent, "latent_channels", 128)
	c.Number(&m.Patch, "patch_size", 4)
	if m.Patch > 1<<maxLevels {
		c.Fail("patch_size", "%d is more than %d", m.Patch, 1<<maxLevels)
		m.Patch = 1
	}
	if c.Whole("patch_size_t", 1) != 1 {
		c.Unknown("patch_size_t", "another number than 1")
	}
	kinds := c.Names("down_block_types")
	m.Encoder = ltxBlocks(c, "", len(kinds) > 0 && kinds[len(kinds)-1] == "LTXVideo095DownBlock3D")
	for i, kind := range kinds {
		if later := kind == "LTXVideo095DownBlock3D"; i < m.Encoder.blocks() && (later != m.Encoder.Later || !later && kind != "LTXVideoDownBlock3D") {
			c.Unknown("down_block_types", kind)
		}
	}
	m.Encoder.Ways = c.Names("downsample_type")
	if n := m.Encoder.blocks(); m.Encoder.Later && len(m.Encoder.Ways) < n {
		c.Fail("downsample_type", "it has %d entries for %d blocks", len(m.Encoder.Ways), n)
	}
	for _, way := range m.Encoder.Ways {
		if !slices.Contains([]string{"conv", "spatial", "temporal", "spatiotemporal"}, way) {
			c.Unknown("downsample_type", way)
		}
	}
	m.Decoder = ltxBlocks(c, "decoder_", false)
	c.Decode("decoder_inject_noise", &m.Decoder.Noise)
	c.Decode("upsample_residual", &m.Decoder.Residual)
	m.Decoder.Factors = positive(c, "upsample_factor")
	if m.Decoder.short() {
		c.Fail("decoder_inject_noise, upsample_residual, upsample_factor", "they have %d, %d and %d entries for %d blocks", len(m.Decoder.Noise), len(m.Decoder.Residual), len(m.Decoder.Factors), len(m.Decoder.Channels))
	}
	m.Clip = Clip{Side: 16, Frames: 21, Scale: m.Patch, Rate: 1}
	for _, doubles := range m.Decoder.Scales {
		if doubles {
			m.Scale, m.Rate = 2*m.Scale, 2*m.Rate
		}
	}
	a.Images = m
}

// ltxBlocks reads the blocks of an encoder or a decoder.
func ltxBlocks(c *family.Config, prefix string, later bool) LTXBlocks {
	b := LTXBlocks{Channels: widths(c, prefix+"block_out_channels"), Later: later, Depths: positive(c, prefix+"layers_per_block")}
	c.Decode(prefix+"spatio_temporal_scaling", &b.Scales)
	for _, n := range b.Depths {
		if n > family.MaxBlocks {
			c.Fail(prefix+"layers_per_block", "%d blocks, more than %d", n, family.MaxBlocks)
		}
	}
	if n := b.blocks(); !b.fit(n) || len(b.Scales) > maxLevels {
		c.Fail(prefix+"layers_per_block, "+prefix+"spatio_temporal_scaling", "they have %d and %d entries for %d blocks", len(b.Depths), len(b.Scales), n)
	}
	return b
}

// positive reads a list of numbers, each 1 or more.
func positive(c *family.Config, key string) []int {
	var given []family.Whole
	c.Decode(key, &given)
	all := make([]int, len(given))
	for i, n := range given {
		c.Bounded(&all[i], key, int(n))
	}
	return all
}
