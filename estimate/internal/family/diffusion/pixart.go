package diffusion

import (
	"cmp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// PixArt makes images, with cross-attention to the text, one modulation for all blocks.
var PixArt = &family.Family{
	Name:   "PixArt",
	Input:  imageInput,
	Makes:  true,
	Layers: pixArt,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "PixArtTransformer2DModel", Read: readPixArt}},
}

// pixArt builds PixArt-alpha and PixArt-Sigma: a DiT with cross-attention to the text. All blocks
// share one modulation, to which each adds a table of its own (arXiv:2310.00426, section 2.3).
func pixArt(c family.Transformer) []tape.Layer {
	d, side := denoise(c), min(c.Side(), setting.MaxField)
	positions := setting.Product(side, side)
	parts := tape.Sequential{
		tape.As("pos_embed", positionedPatches{c.PatchConv(false), positions, c.Hidden, false}),
		tape.As("adaln_single.emb.timestep_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, true)),
		tape.As("adaln_single.linear", layer.Linear{In: c.Hidden, Out: 6 * min(c.Hidden, setting.MaxField/6)}),
		tape.As("caption_projection", twoLinears(d.TextDim, c.Hidden, layer.GELU{}, true)),
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{2, c.Hidden}}),
		tape.As("norm_out", plainLayerNorm(c)),
		tape.As("proj_out", toPixels(c, d)),
	}
	if d.Sized {
		third := twoLinears(timeFeatures, c.Hidden/3, layer.SiLU{}, true)
		parts = append(parts, tape.As("adaln_single.emb.resolution_embedder", third), tape.As("adaln_single.emb.aspect_ratio_embedder", third))
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "transformer_blocks", n: c.Blocks, block: pixArtBlock(c)}},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			batch := x.Dim(0)
			x = f.Call("pos_embed", x)
			time := embedTime(f, "adaln_single.emb.timestep_embedder", batch)
			if d.Sized {
				size := f.View(embedTime(f, "adaln_single.emb.resolution_embedder", 2*batch), batch, -1)
				time = f.Add(time, f.Cat(1, size, embedTime(f, "adaln_single.emb.aspect_ratio_embedder", batch)))
			}
			modulation := f.Call("adaln_single.linear", f.Apply(layer.SiLU{}, time))
			return x, []tape.Tensor{f.Call("caption_projection", f.Input(1)), modulation, time}
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := tabled(f, beside[2], 2, c.Hidden)
			return pixels(c, f, f.Call("proj_out", modulated(f, "norm_out", x, m[1], m[0])))
		},
	}.layers()
}

// tabled adds the layer's table to x and splits the sum into n parts, each (batch, 1, width).
func tabled(f *tape.Flow, x tape.Tensor, n, width int) []tape.Tensor {
	y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), n, width}, Params: true})
	return chunks(f, f.View(y, x.Dim(0), -1), n)
}

func pixArtBlock(c family.Transformer) tape.Layer {
	attention := imageAttention{c.Hidden, c.Hidden, c.Heads, true}.layer()
	parts := tape.Sequential{
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{6, c.Hidden}}),
		tape.As("norm1", plainLayerNorm(c)),
		tape.As("attn1", attention),
		tape.As("norm2", plainLayerNorm(c)),
		tape.As("attn2", attention),
		tape.As("ff", imageMLP(c)),
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text, m := f.Beside(0), tabled(f, f.Beside(1), 6, c.Hidden)
		y := modulated(f, "norm1", x, m[1], m[0])
		x = f.Add(x, f.Mul(f.Call("attn1", y, y), m[2]))
		f.Hold(y)
		seen := f.Call("attn2", x, text)
		x = f.Add(x, seen)
		y = modulated(f, "norm2", x, m[4], m[3])
		z := f.Add(x, f.Mul(f.Call("ff", y), m[5]))
		f.Hold(y, seen)
		return z
	}}
}

// imageAttention is diffusers' Attention from x to the tensor beside it. Its output is divided by a
// number that is mostly 1.
type imageAttention struct {
	width, seen, heads int
	bias               bool // of queries, keys and values
}

func (l imageAttention) layer() tape.Layer {
	of, seen := layer.Linear{In: l.width, Out: l.width, NoBias: !l.bias, Split: layer.ByColumns}, layer.Linear{In: l.seen, Out: l.width, NoBias: !l.bias, Split: layer.ByColumns}
	parts := tape.Sequential{tape.As("to_q", of), tape.As("to_k", seen), tape.As("to_v", seen), tape.As("to_out.0", layer.Linear{In: l.width, Out: l.width, Split: layer.ByRows})}
	return tape.Module{Name: "Attention", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		seen := f.Beside(0)
		q, k, v := f.Call("to_q", x), f.Call("to_k", seen), f.Call("to_v", seen)
		y := f.Scale(f.Call("to_out.0", layer.ScaledDotProduct(f.Tape, q, k, v, l.heads, l.width/max(1, l.heads))))
		f.Hold(q, k, v)
		return y
	}}
}

// toPixels returns the layer that makes the pixels of each place.
func toPixels(c family.Transformer, d Denoiser) tape.Layer {
	return layer.Linear{In: c.Hidden, Out: setting.Product(c.Patch, c.Patch, d.Out)}
}

// pixels puts the pixels of all positions together to an image.
func pixels(c family.Transformer, f *tape.Flow, x tape.Tensor) tape.Tensor {
	image := f.Input(0)
	return f.Copy(f.View(x, x.Dim(0), -1, image.Dim(2), image.Dim(3)))
}

// positionedPatches cuts an image into patches and adds positions that are not trained.
type positionedPatches struct {
	proj              tape.Layer
	positions, hidden int
	copied            bool // the sum is copied, since its channels come first in memory
}

func (positionedPatches) Kind() string { return "Patches" }

func (l positionedPatches) Declare(d *tape.Declaration) {
	d.Layer("proj", l.proj)
	d.Buffer("pos_embed", 1, l.positions, l.hidden)
}

func (l positionedPatches) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = t.Call("proj", l.proj, x)
	x = family.FlatPatches{}.Forward(t, x)
	x = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true})
	if !l.copied {
		return x
	}
	return t.Copy(x)
}

func readPixArt(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 16, 72, 28, 4, 2)
	cross := 0
	c.Number(&a.Image, "sample_size", 128)
	c.Number(&numbersOf(a).TextDim, "caption_channels", 0)
	c.Number(&cross, "cross_attention_dim", a.Hidden)
	switch {
	case cmp.Or(c.Word("norm_type"), "ada_norm_single") != "ada_norm_single" || c.Flag("norm_elementwise_affine", false):
		c.Unknown("norm_type, norm_elementwise_affine", "another norm than ada_norm_single without weights")
	case cmp.Or(c.Word("attention_type"), "default") != "default" || !c.Flag("attention_bias", true) || cross != a.Hidden:
		c.Unknown("attention_type, attention_bias, cross_attention_dim", "another attention than the usual")
	case cmp.Or(c.Word("activation_fn"), "gelu-approximate") != "gelu-approximate":
		c.Unknown("activation_fn", c.Word("activation_fn"))
	case a.Image%a.Patch != 0:
		c.Fail("sample_size", "an image of %d does not divide into patches of %d", a.Image, a.Patch)
	}
	numbersOf(a).Sized = c.Flag("use_additional_conditions", a.Image == 128)
	c.Times(&a.FFN, "attention_head_dim", a.Hidden, 4)
}
