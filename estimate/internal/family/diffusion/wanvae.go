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

var wanAutoencoderFamily = &family.Family{
	Name: "autoencoder of Wan",
	Types: []family.Type{
		{Name: "AutoencoderKLWan", Read: readWanAutoencoder},
		{Name: "AutoencoderKLQwenImage", Read: readQwenAutoencoder},
	},
}

// WanAutoencoder makes videos from latent videos (arXiv:2503.20314; diffusers' AutoencoderKLWan, and AutoencoderKLQwenImage
// for single frames). It decodes one latent frame after another. Each convolution over time keeps the last two frames
// that it read for the next call.
type WanAutoencoder struct {
	Encoder, Decoder []int // widths of the blocks, from the highest resolution to the lowest, that of the first convolution first
	Latent           int   // channels of a latent frame
	In, Out          int   // channels of a frame
	Depth            int   // residual blocks in each of the encoder's blocks; the decoder's have one more
	Halved           []bool
	Attends          []bool // the encoder's blocks in which attention follows each residual block
	Residual         bool   // blocks have shortcuts around the change of resolution (Wan 2.2)
	Patch            int    // frames are read and made in patches; 0 means 1
	Clip
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (a WanAutoencoder) Layers() []tape.Layer {
	levels := len(a.Encoder) - 1
	if tooDeep(levels, a.Depth) || len(a.Decoder) != len(a.Encoder) || len(a.Halved) < levels-1 {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("there are %d and %d widths, %d blocks at each and %d changes in time: want 2 to %d widths", len(a.Encoder), len(a.Decoder), a.Depth, len(a.Halved), maxLevels+1))}
	}
	twice := setting.Product(a.Latent, 2)
	parts := tape.Sequential{
		tape.As("encoder", a.encoder()), tape.As("quant_conv", wanConv{cube(twice, twice, 1)}),
		tape.As("post_quant_conv", wanConv{cube(a.Latent, a.Latent, 1)}), tape.As("decoder", a.decoder()),
	}
	return decoding("Autoencoder", parts, a.decode)
}

// decode decodes one latent frame after another, and joins each result with those before.
func (a WanAutoencoder) decode(f *tape.Flow, z tape.Tensor) tape.Tensor {
	f.Rank(z, 5, "(batch, channels, frames, height, width)")
	state := wanStates.Of(f.Tape)
	*state = wanState{kept: map[string]tape.Tensor{}}
	x := f.Call("post_quant_conv", z)
	var out, last tape.Tensor
	for i := range z.Dim(2) {
		frame := x
		if z.Dim(2) > 1 {
			frame = f.Split(x, 2, slices.Repeat([]int{1}, z.Dim(2))...)[i]
		}
		y := f.Call("decoder", frame)
		f.Hold(last) // until the next result takes its name
		if last = y; i > 0 {
			y = f.Cat(2, out, y)
		}
		state.chunk++
		out = y
	}
	f.Hold(x, last)
	if a.Patch > 1 {
		out = f.Copy(f.View(out, out.Dim(0), -1, out.Dim(2), out.Dim(3)*a.Patch, out.Dim(4)*a.Patch))
	}
	out = f.Scale(out) // clamped
	for _, kept := range state.kept {
		f.Hold(kept)
	}
	return out
}

func (a WanAutoencoder) encoder() tape.Layer {
	parts := tape.Sequential{tape.As("conv_in", wanConv{cube(a.In, a.Encoder[0], 3)})}
	blocks := 0
	add := func(l tape.Layer) {
		parts = append(parts, tape.As("down_blocks."+strconv.Itoa(blocks), l))
		blocks++
	}
	in, last := a.Encoder[0], len(a.Encoder)-2
	for i, out := range a.Encoder[1:] {
		var down tape.Layer
		if i < last {
			down = wanDown(out, a.Halved[i])
		}
		if a.Residual {
			block := wanResnets(in, out, a.Depth)
			if down != nil {
				block = append(block, tape.As("downsampler", down))
			}
			add(block)
			in = out
			continue
		}
		for range a.Depth {
			add(wanResnet(in, out))
			if in = out; i < len(a.Attends) && a.Attends[i] {
				add(wanAttention(out))
			}
		}
		if down != nil {
			add(down)
		}
	}
	return append(append(parts, wanMiddle(in)), wanEnd(in, setting.Product(a.Latent, 2))...)
}

func (a WanAutoencoder) decoder() tape.Layer {
	last := len(a.Decoder) - 2
	in := a.Decoder[last+1]
	parts := tape.Sequential{tape.As("conv_in", wanConv{cube(a.Latent, in, 3)}), wanMiddle(in)}
	for i := range last + 1 {
		out := a.Decoder[last+1-i]
		block := wanUp{in: in, out: out, depth: a.Depth + 1, changed: out, residual: a.Residual, rises: i < last}
		block.doubled = block.rises && a.Halved[last-1-i]
		if in = out; !a.Residual {
			block.changed = max(1, out/2)
			in = block.changed
		}
		parts = append(parts, tape.As("up_blocks."+strconv.Itoa(i), block.layer()))
	}
	return append(parts, wanEnd(a.Decoder[1], a.Out)...)
}

// wanState is what the convolutions over time keep for the next latent frame.
type wanState struct {
	kept  map[string]tape.Tensor // by path
	chunk int                    // latent frames decoded before
}

var wanStates tape.Slot[wanState]

// wanConv is a convolution that sees no later frame: zeros come before the first one, or the last frames of the
// previous call.
type wanConv struct{ layer.Conv3d }

func (wanConv) Kind() string { return "CausalConv3d" }

func (l wanConv) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if l.Kernel == 1 {
		return l.Conv3d.Forward(t, t.Copy(x)) // padded by nothing
	}
	y := l.after(t, x, 2, 2)
	t.Hold(x)
	return y
}

// after runs the convolution after the frames of the previous call, and keeps the last of x.
func (l wanConv) after(t *tape.Tape, x tape.Tensor, rows, columns int) tape.Tensor {
	kept, path := wanStates.Of(t).kept, t.DeclaredPath()
	before, has := kept[path]
	last := t.Copy(lastFrames(t, x, 2))
	if has && last.Dim(2) < 2 {
		last = t.Cat(2, lastFrames(t, before, 1), last)
	}
	frames := 2
	if has {
		x, frames = t.Cat(2, before, x), 2-before.Dim(2)
	}
	y := l.Conv3d.Forward(t, padded(t, x, frames, rows, columns))
	if has {
		t.Hold(before)
	}
	kept[path] = last
	return y
}

// lastFrames returns the last n frames, or all if there are fewer.
func lastFrames(t *tape.Tape, x tape.Tensor, n int) tape.Tensor {
	if x.Dim(2) <= n {
		return x
	}
	return t.From(x, 2, x.Dim(2)-n)
}

// wanNorm divides the channels of each position by their length, in float32.
type wanNorm struct{ channels int }

func (wanNorm) Kind() string { return "RMSNorm" }

func (l wanNorm) Declare(d *tape.Declaration) { d.Param("gamma", l.channels, 1, 1) }

func (l wanNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	wide := t.Widen(x)
	lengths := tape.Own{Shape: append(alloc.Shape{x.Dim(0), 1}, x.Shape[2:]...), DType: alloc.Float32}
	y := t.In(x.DType, t.Op(tape.Op{In: []tape.Tensor{wide}, Shape: x.Shape, Keep: []tape.Tensor{wide}, KeepOwn: []tape.Own{lengths, lengths}, FLOPs: setting.Flops(x.Shape, 4)}))
	scaled := t.Scale(y)
	z := t.Op(tape.Op{In: []tape.Tensor{scaled}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{scaled}})
	z = t.Scale(z) // plus a bias of 0
	t.Hold(x, y)
	return z
}

func wanResnet(in, out int) tape.Layer {
	parts := tape.Sequential{
		tape.As("norm1", wanNorm{in}), tape.As("conv1", wanConv{cube(in, out, 3)}),
		tape.As("norm2", wanNorm{out}), tape.As("conv2", wanConv{cube(out, out, 3)}),
	}
	if in != out {
		parts = append(parts, tape.As("conv_shortcut", wanConv{cube(in, out, 1)}))
	}
	return tape.Module{Name: "ResnetBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		short := x
		if in != out {
			short = f.Call("conv_shortcut", x)
		}
		y := f.Call("conv1", f.Apply(layer.SiLU{}, f.Call("norm1", x)))
		y = f.Call("conv2", f.Apply(layer.SiLU{}, f.Call("norm2", y)))
		z := f.Add(y, short)
		f.Hold(x)
		return z
	}}
}

// wanResnets returns n residual blocks.
func wanResnets(in, out, n int) tape.Sequential {
	var parts tape.Sequential
	for i := range n {
		parts, in = append(parts, tape.As("resnets."+strconv.Itoa(i), wanResnet(in, out))), out
	}
	return parts
}

// wanMiddle returns the block at the lowest resolution.
func wanMiddle(n int) tape.Named {
	parts := tape.Sequential{tape.As("resnets.0", wanResnet(n, n)), tape.As("attentions.0", wanAttention(n)), tape.As("resnets.1", wanResnet(n, n))}
	return tape.As("mid_block", tape.Module{Name: "MidBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("resnets.1", f.Call("attentions.0", f.Call("resnets.0", x)))
		f.Hold(x)
		return y
	}})
}

// wanEnd returns the layers after the last block.
func wanEnd(in, out int) tape.Sequential {
	return tape.Sequential{tape.As("norm_out", wanNorm{in}), tape.As("nonlinearity", layer.SiLU{}), tape.As("conv_out", wanConv{cube(in, out, 3)})}
}

// wanAttention returns attention with one head between the positions of each frame.
func wanAttention(n int) tape.Layer {
	parts := tape.Sequential{
		tape.As("norm", wanNorm{n}), tape.As("to_qkv", layer.Conv2d{In: n, Out: setting.Product(n, 3), Kernel: 1}), tape.As("proj", layer.Conv2d{In: n, Out: n, Kernel: 1}),
	}
	return tape.Module{Name: "Attention", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		images := framewise(f, x)
		qkv := f.Call("to_qkv", f.Call("norm", images))
		qkv = f.Copy(f.Permute(f.View(qkv, images.Dim(0), 3*n, -1), 0, 2, 1))
		parts := f.Split(qkv, 2, n, n, n)
		y := layer.ScaledDotProduct(f.Tape, parts[0], parts[1], parts[2], 1, n)
		y = f.Call("proj", f.Copy(f.View(f.Permute(y, 0, 2, 1), images.Shape...)))
		z := f.Add(filmwise(f, y, x.Dim(0)), x)
		f.Hold(qkv)
		return z
	}}
}

// wanDown halves the resolution. It does not run.
func wanDown(n int, halved bool) tape.Layer {
	parts := tape.Sequential{tape.As("resample.1", layer.Conv2d{In: n, Out: n, Kernel: 3, Stride: 2})}
	if halved {
		parts = append(parts, tape.As("time_conv", wanConv{layer.Conv3d{In: n, Out: n, Kernel: 3, Kernels: [3]int{3, 1, 1}}}))
	}
	return parts
}

// wanUp is a block of the decoder. It doubles the resolution if it rises, and the frames if they are doubled too.
type wanUp struct {
	in, out, depth, changed  int // changed are the channels after the change of resolution
	residual, rises, doubled bool
}

func (b wanUp) layer() tape.Layer {
	parts, change := wanResnets(b.in, b.out, b.depth), "upsamplers.0"
	if b.residual {
		change = "upsampler"
	}
	if b.rises {
		up := tape.Sequential{tape.As("resample.1", threeByThree(b.out, b.changed))}
		if b.doubled {
			up = append(up, tape.As("time_conv", wanTime{wanConv{layer.Conv3d{In: b.out, Out: setting.Product(b.out, 2), Kernel: 3, Kernels: [3]int{3, 1, 1}}}}))
		}
		parts = append(parts, tape.As(change, tape.Module{Name: "Upsample", Parts: up, Run: b.enlarge}))
	}
	return tape.Module{Name: "UpBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y, entered := x, x
		if b.residual {
			entered = f.Copy(x)
		}
		for i := range b.depth {
			y = f.Call("resnets."+strconv.Itoa(i), y)
		}
		if b.rises {
			y = f.Call(change, y)
		}
		if b.residual && b.rises {
			y = f.Add(y, b.repeated(f, entered))
		}
		f.Hold(x, entered)
		return y
	}}
}

// enlarge doubles frames, except for the first latent frame, and then the resolution, in float32.
func (b wanUp) enlarge(f *tape.Flow, x tape.Tensor) tape.Tensor {
	y := x
	if b.doubled {
		y = f.Call("time_conv", x)
	}
	images := framewise(f, y)
	z := inFloat32(f, images, func(x tape.Tensor) tape.Tensor { return nearest(f, x) })
	z = f.Call("resample.1", z)
	f.Hold(images, x)
	return filmwise(f, z, x.Dim(0))
}

// repeated is the shortcut around a change of resolution, which repeats channels and makes positions of them.
func (b wanUp) repeated(f *tape.Flow, x tape.Tensor) tape.Tensor {
	more := 1
	if b.doubled {
		more = 2
	}
	channels := setting.Product(b.out, 4*more)
	y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), channels, x.Dim(2), x.Dim(3), x.Dim(4)}})
	y = f.View(f.Copy(y), x.Dim(0), b.out, more*x.Dim(2), 2*x.Dim(3), 2*x.Dim(4))
	if more > 1 && wanStates.Of(f.Tape).chunk == 0 {
		y = f.From(y, 2, more-1)
	}
	return y
}

// wanTime makes two frames of each, except of the first latent frame.
type wanTime struct{ wanConv }

func (l wanTime) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	state := wanStates.Of(t)
	if state.chunk == 0 {
		return x
	}
	if _, has := state.kept[t.DeclaredPath()]; !has && x.Dim(2) < 2 {
		t.Const(x.DType, x.Shape...) // zeros in place of the frame before
	}
	y := l.after(t, x, 0, 0)
	shape := slices.Clone(x.Shape)
	shape[2] *= 2
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, PassGrad: true})
}

// Inputs are latent videos of the usual size.
func (a WanAutoencoder) Inputs(batch, _ int) []family.Input { return a.inputs(batch, a.Latent) }

// Latents are latent videos of this size.
func (a WanAutoencoder) Latents(batch, side, frames int) []int {
	return []int{batch, a.Latent, frames, side, side}
}

// Resized is the autoencoder for frames of another side.
func (a WanAutoencoder) Resized(side int) (family.Images, error) {
	var err error
	a.Clip, err = a.resized(side)
	return a, err
}

// Filmed is the autoencoder for videos of another length.
func (a WanAutoencoder) Filmed(frames int) (family.Images, error) {
	var err error
	a.Clip, err = a.filmed(frames)
	return a, err
}

// Tiles have 256 pixels a side, and overlap by 64.
func (a WanAutoencoder) Tiles() (side, step int) { return 256 / max(1, a.Scale), 192 / max(1, a.Scale) }

func readWanAutoencoder(c *family.Config, a *family.Model) {
	m := wanAutoencoder(c)
	base := c.Whole("base_dim", 96)
	m.Decoder = wanWidths(c, "decoder_base_dim", c.Whole("decoder_base_dim", base))
	c.Number(&m.In, "in_channels", 3)
	c.Number(&m.Out, "out_channels", 3)
	m.Residual = c.Flag("is_residual", false)
	if c.Has("patch_size") {
		c.Number(&m.Patch, "patch_size", 1)
	}
	m.Clip = Clip{Side: 60, Frames: 21, Rate: 4}
	m.finish(c, a)
}

func readQwenAutoencoder(c *family.Config, a *family.Model) {
	m := wanAutoencoder(c)
	m.Decoder = m.Encoder
	c.Number(&m.In, "input_channels", 3)
	m.Out = m.In
	m.Clip = Clip{Side: 128, Frames: 1}
	m.finish(c, a)
}

// finish computes what the numbers lead to.
func (a WanAutoencoder) finish(c *family.Config, m *family.Model) {
	a.Scale = 1 << (len(a.Encoder) - 2)
	if a.Patch > maxLevels {
		c.Fail("patch_size", "%d is more than %d", a.Patch, maxLevels)
	} else {
		a.Scale *= max(1, a.Patch)
	}
	if want := len(a.Encoder) - 2; len(a.Halved) < want {
		c.Fail("temperal_downsample", "it has %d entries for %d blocks", len(a.Halved), want+1)
	}
	a.Halved = a.Halved[:min(len(a.Halved), len(a.Encoder)-2)]
	m.Images = a
}

// wanAutoencoder reads what both classes have.
func wanAutoencoder(c *family.Config) WanAutoencoder {
	c.Harmless("latents_mean", "latents_std", "scale_factor_temporal", "scale_factor_spatial")
	var m WanAutoencoder
	m.Encoder = wanWidths(c, "base_dim", c.Whole("base_dim", 96))
	c.Number(&m.Latent, "z_dim", 16)
	c.Number(&m.Depth, "num_res_blocks", 2)
	if m.Depth > family.MaxBlocks {
		c.Fail("num_res_blocks", "%d blocks, more than %d", m.Depth, family.MaxBlocks)
	}
	c.Decode("temperal_downsample", &m.Halved)
	var scales []float64
	c.Decode("attn_scales", &scales)
	scale := 1.0
	for range len(m.Encoder) - 1 {
		m.Attends = append(m.Attends, slices.Contains(scales, scale))
		scale /= 2
	}
	return m
}

// wanWidths returns the widths of the blocks, which are multiples of base, that of the first convolution first.
func wanWidths(c *family.Config, key string, base int) []int {
	n := 0
	c.Bounded(&n, key, base)
	all := []int{n}
	for _, multiple := range widths(c, "dim_mult") {
		w := 0
		c.Times(&w, "dim_mult", n, float64(multiple))
		all = append(all, w)
	}
	return all
}
