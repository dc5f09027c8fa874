package diffusion

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ZImage makes images, with blocks of one stream, after blocks that image and text have for themselves.
var ZImage = &family.Family{
	Name:   "Z-Image",
	Input:  zInput,
	Makes:  true,
	Heads:  family.ElementaryIfAny,
	Layers: zImage,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "ZImageTransformer2DModel", Read: readZImage}},
}

// zImages are the numbers of Z-Image beside those of a Denoiser.
type zImages struct {
	Denoiser
	Patches, Along []int // of each kind of patches that the model can read; the first is used
	SigLIP         int   // width of an image's embedding that it can read too; 0 means none
}

// Z-Image pads image and text each to a multiple of this many positions, and embeds a timestep in this width, through
// another.
const (
	zPositions = 32
	zTime      = 256
	zMiddle    = 1024
)

// zImage builds Z-Image (arXiv:2511.22699): blocks like Llama's with norms before and after, modulated by the timestep,
// over image and text as one sequence.
func zImage(c family.Transformer) []tape.Layer {
	d := *setting.Or(family.Own[zImages](c), &zImages{})
	small := min(c.Hidden, zTime)
	rms := func(size int) tape.Layer { return layer.RMSNorm{Size: size, Unfused: true, Mixed: true} }
	text := func(width int) tape.Layer {
		return tape.Sequential{rms(width), layer.Linear{In: width, Out: c.Hidden}}
	}
	parts := tape.Sequential{
		tape.As("t_embedder.mlp", tape.Sequential{layer.Linear{In: timeFeatures, Out: zMiddle}, layer.SiLU{}, layer.Linear{In: zMiddle, Out: small}}),
		tape.As("cap_embedder", text(d.TextDim)),
		tape.Inline(zPads{c.Hidden, d.SigLIP > 0}),
	}
	for i := range d.Patches {
		name, pixels := d.patches(i), setting.Product(d.Along[i], d.Patches[i], d.Patches[i], c.Channels)
		parts = append(parts,
			tape.As("all_x_embedder."+name, layer.Linear{In: pixels, Out: c.Hidden}),
			tape.As("all_final_layer."+name+".norm_final", plainLayerNorm(c)),
			tape.As("all_final_layer."+name+".linear", layer.Linear{In: c.Hidden, Out: pixels}),
			tape.As("all_final_layer."+name+".adaLN_modulation.1", layer.Linear{In: small, Out: c.Hidden}))
	}
	refiners := func(name string, modulated bool) numbered {
		return numbered{name: name, n: max(0, min(d.Refiners, maxDenoiserBlocks)), block: zBlock(c, modulated)}
	}
	own := []numbered{refiners("noise_refiner", true), refiners("context_refiner", false)}
	if d.SigLIP > 0 {
		parts = append(parts, tape.As("siglip_embedder", text(d.SigLIP)))
		own = append(own, refiners("siglip_refiner", false))
	}
	for _, b := range own {
		for i := range b.n {
			parts = append(parts, tape.As(b.path(i), b.block))
		}
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "layers", n: c.Blocks, block: zBlock(c, true)}},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) { return d.before(c, f, x, own) },
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			final := "all_final_layer." + d.patches(0)
			scale := f.Scale(f.Call(final+".adaLN_modulation.1", f.Apply(layer.SiLU{}, beside[1])))
			y := f.Call(final+".linear", f.Mul(f.Call(final+".norm_final", x), f.View(scale, x.Dim(0), 1, c.Hidden)))
			image := f.Input(0)
			positions := image.Dim(2) / d.Along[0] * (image.Dim(3) / d.Patches[0]) * (image.Dim(4) / d.Patches[0])
			f.Hold(beside...)
			return f.Copy(f.View(f.Part(y, 1, positions), image.Shape...))
		},
	}.layers()
}

// patches is the name of the i-th kind of patches.
func (d zImages) patches(i int) string { return fmt.Sprintf("%d-%d", d.Patches[i], d.Along[i]) }

// before embeds image and text, runs each through its blocks, and joins them.
func (d zImages) before(c family.Transformer, f *tape.Flow, x tape.Tensor, own []numbered) (tape.Tensor, []tape.Tensor) {
	batch := x.Dim(0)
	time := f.Call("t_embedder.mlp", f.Const(f.Activation(), batch, timeFeatures))
	table := func(positions int) tape.Tensor {
		return f.Const(alloc.Float32, batch, positions, 1, c.HeadWidth())
	}
	long := func(x tape.Tensor) tape.Tensor { // padded to whole groups of positions
		shape := f.Resized(x.Shape, (x.Dim(1)+zPositions-1)/zPositions*zPositions, x.Dim(2))
		return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
	}
	refined := func(b numbered, x tape.Tensor) (y, positions tape.Tensor) {
		positions = table(x.Dim(1))
		for i := range b.n {
			x = f.Call(b.path(i), x, positions, time)
		}
		return x, positions
	}
	flat := f.Copy(f.View(x, batch, -1, setting.Product(d.Along[0], d.Patches[0], d.Patches[0], c.Channels)))
	image, rows := refined(own[0], f.Scale(f.Call("all_x_embedder."+d.patches(0), long(flat))))
	text, words := refined(own[1], f.Scale(f.Call("cap_embedder", long(f.Input(1)))))
	joined := f.Copy(f.Cat(1, image, text)) // each text's sequence, and then that of all
	// The forward pass holds what it joined to its end.
	return joined, []tape.Tensor{table(joined.Dim(1)), time, image, text, rows, words}
}

// zPads are the vectors of positions that pad image, text and embedded images.
type zPads struct {
	width int
	three bool
}

func (l zPads) Declare(d *tape.Declaration) {
	d.Param("x_pad_token", 1, l.width)
	d.Param("cap_pad_token", 1, l.width)
	if l.three {
		d.Param("siglip_pad_token", 1, l.width)
	}
}

func (zPads) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// zBlock is a block of one stream. It reads a rotary table and the timestep beside x.
func zBlock(c family.Transformer, modulates bool) tape.Layer {
	norm := layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true}
	names := layer.AttentionNames{Q: "attention.to_q", K: "attention.to_k", V: "attention.to_v", Out: "attention.to_out.0"}
	if c.QKNorm != 0 {
		names.QNorm, names.KNorm = "attention.norm_q", "attention.norm_k"
	}
	up := layer.Linear{In: c.Hidden, Out: c.FFN, NoBias: true, Split: layer.ByColumns}
	parts := append(projections(c, names, false),
		tape.As("feed_forward.w1", up), tape.As("feed_forward.w3", up), tape.As("feed_forward.w2", layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: layer.ByRows}),
		tape.As("attention_norm1", norm), tape.As("attention_norm2", norm), tape.As("ffn_norm1", norm), tape.As("ffn_norm2", norm))
	if modulates {
		parts = append(parts, tape.As("adaLN_modulation.0", layer.Linear{In: min(c.Hidden, zTime), Out: setting.Product(c.Hidden, 4)}))
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		var m []tape.Tensor
		if modulates {
			m = chunks(f, f.Call("adaLN_modulation.0", f.Beside(1)), 4)
		}
		by := func(x tape.Tensor, i int) tape.Tensor {
			if !modulates {
				return x
			}
			return f.Mul(x, f.Scale(m[i]))
		}
		y := by(f.Call("attention_norm1", x), 0)
		qkv := headed(c, f, y, names)
		for i := range 2 {
			qkv[i] = f.In(qkv[i].DType, f.Mul(f.In(alloc.Float32, qkv[i]), f.Beside(0)))
		}
		attention := f.Call(names.Out, attended(c, f, qkv, nil))
		f.Hold(y)
		f.Hold(qkv[:]...)
		z := f.Add(x, by(f.Call("attention_norm2", attention), 1))
		y = by(f.Call("ffn_norm1", z), 2)
		gate, up := f.Call("feed_forward.w1", y), f.Call("feed_forward.w3", y)
		product := f.Mul(f.Apply(layer.SiLU{}, gate), up)
		f.Hold(gate, up) // the arguments of _forward_silu_gating
		y2 := f.Call("feed_forward.w2", product)
		f.Hold(y)
		out := f.Add(z, by(f.Call("ffn_norm2", y2), 3))
		f.Hold(x, attention)
		return out
	}}
}

// zInput returns a noisy latent image, as a video of one frame, and a text.
func zInput(a *family.Model, batch, length int) []family.Input {
	return videoInput(a, batch, cmp.Or(length, usualTokens), family.Own[zImages](a.Transformer).TextDim)
}

func readZImage(c *family.Config, a *family.Model) {
	d := &zImages{}
	a.Own = d
	c.Number(&a.Hidden, "dim", 3840)
	c.Number(&a.Heads, "n_heads", 30)
	c.Number(&a.Blocks, "n_layers", 30)
	c.Number(&a.Channels, "in_channels", 16)
	c.Number(&d.Refiners, "n_refiner_layers", 2)
	c.Number(&d.TextDim, "cap_feat_dim", 2560)
	if d.Refiners > family.MaxBlocks {
		c.Fail("n_refiner_layers", "%d blocks, more than %d", d.Refiners, family.MaxBlocks)
	}
	if c.Has("siglip_feat_dim") {
		c.Number(&d.SigLIP, "siglip_feat_dim", 0)
	}
	if c.Flag("qk_norm", true) {
		a.QKNorm = layer.NormHeads
	}
	c.Harmless("n_kv_heads", "axes_dims", "axes_lens", "t_scale") // the attention has as many heads of keys and values as of queries
	c.Times(&a.FFN, "dim", 1, float64(a.Hidden)/3*8)
	d.Patches, d.Along = positive(c, "all_patch_size"), positive(c, "all_f_patch_size")
	if n := len(d.Patches); n == 0 || n > maxLevels || n != len(d.Along) || d.Patches[0] > maxLevels || d.Along[0] != 1 {
		c.Fail("all_patch_size, all_f_patch_size", "%v and %v: want as many of both, the first of them at most %d and 1", d.Patches, d.Along, maxLevels)
		return
	}
	a.Image, a.Patch = usualImageSide, d.Patches[0]
	for a.Image%a.Patch != 0 {
		a.Image++
	}
}

// usualImageSide is the side of latent images of 1024 pixels.
const usualImageSide = 128
