package diffusion

import (
	"cmp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LTXVideo makes videos, as positions of a latent video with many channels.
var LTXVideo = &family.Family{
	Name:   "LTX-Video",
	Input:  ltxInput,
	Makes:  true,
	Scale:  32,
	Rate:   8,
	Frames: ltxFrames,
	Layers: ltxVideo,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "LTXVideoTransformer3DModel", Read: readLTXVideo}},
}

// Usual latent frames of LTX-Video, for 161 frames, and their side for 512 pixels; and the number of tokens of a text.
const (
	ltxFrames = 21
	ltxSide   = 16
	ltxTokens = 128
)

// ltxVideo builds LTX-Video (arXiv:2501.00103), which differs from Wan in that it reads positions, that its norms have
// neither means nor weights, and that queries and keys rotate as a whole.
func ltxVideo(c family.Transformer) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.As("proj_in", layer.Linear{In: c.Channels, Out: c.Hidden}),
		tape.As("time_embed.emb.timestep_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, true)),
		tape.As("time_embed.linear", layer.Linear{In: c.Hidden, Out: setting.Product(c.Hidden, 6)}),
		tape.As("caption_projection", twoLinears(d.TextDim, c.Hidden, layer.GELU{}, true)),
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{2, c.Hidden}}),
		tape.As("norm_out", plainLayerNorm(c)),
		tape.As("proj_out", layer.Linear{In: c.Hidden, Out: d.Out}),
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "transformer_blocks", n: c.Blocks, block: ltxBlock(c, d)}},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			batch := x.Dim(0)
			cos, sin := f.Const(alloc.Float32, batch, x.Dim(1), c.Hidden), f.Const(alloc.Float32, batch, x.Dim(1), c.Hidden)
			x = f.Call("proj_in", x)
			time := embedTime(f, "time_embed.emb.timestep_embedder", batch)
			modulation := f.Call("time_embed.linear", f.Apply(layer.SiLU{}, time))
			return x, []tape.Tensor{cos, sin, f.Call("caption_projection", f.Input(1)), modulation, time}
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := tabled(f, beside[4], 2, c.Hidden)
			y := f.Call("proj_out", modulated(f, "norm_out", x, m[1], m[0]))
			f.Hold(beside...)
			return y
		},
	}.layers()
}

func ltxBlock(c family.Transformer, d Denoiser) tape.Layer {
	norm := layer.RMSNorm{Size: c.Hidden, Unfused: true, Mixed: true, Plain: !d.NormsCross}
	turn := func(f *tape.Flow, x tape.Tensor) tape.Tensor { return turned(f, x, f.Beside(0), f.Beside(1)) }
	parts := tape.Sequential{
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{6, c.Hidden}}),
		tape.As("norm1", norm), tape.As("attn1", acrossHeads{c: c, turn: turn, noBias: d.NoBias, noOut: d.NoOutBias}.layer()),
		tape.As("attn2", acrossHeads{c: c, noBias: d.NoBias, noOut: d.NoOutBias}.layer()),
		tape.As("norm2", norm), tape.As("ff", imageMLP(c)),
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		m := tabled(f, f.Beside(3), 6, c.Hidden)
		y := modulated(f, "norm1", x, m[1], m[0])
		attention := f.Call("attn1", y, f.Beside(0), f.Beside(1))
		z := f.Add(x, f.Mul(attention, m[2]))
		seen := f.Call("attn2", z, f.Beside(2))
		f.Hold(y, attention)
		w := f.Add(z, seen)
		normed := modulated(f, "norm2", w, m[4], m[3])
		f.Hold(y)
		ff := f.Call("ff", normed)
		out := f.Add(w, f.Mul(ff, m[5]))
		f.Hold(x, seen, normed, ff)
		return out
	}}
}

// ltxInput returns the positions of a noisy latent video, and a text.
func ltxInput(a *family.Model, batch, length int) []family.Input {
	inputs := videoInput(a, batch, cmp.Or(length, ltxTokens), numbersOf(a).TextDim)
	shape := inputs[0].Shape
	inputs[0] = family.Reals(batch, shape[2]*shape[3]*shape[4], shape[1])
	return inputs
}

func readLTXVideo(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 32, 64, 28, 128, 1)
	d := numbersOf(a)
	a.Image, a.Patch = ltxSide, 1
	c.Number(&d.TextDim, "caption_channels", 4096)
	d.NormsCross = c.Flag("norm_elementwise_affine", false)
	d.NoBias, d.NoOutBias = !c.Flag("attention_bias", true), !c.Flag("attention_out_bias", true)
	c.Times(&a.FFN, "attention_head_dim", a.Hidden, 4)
	c.Harmless("patch_size", "patch_size_t") // they scale positions, which the pipeline makes
	cross := 0
	c.Number(&cross, "cross_attention_dim", a.Hidden)
	switch {
	case cross != a.Hidden:
		c.Unknown("cross_attention_dim", "another width than the model's")
	case c.Word("qk_norm") != "rms_norm_across_heads":
		c.Unknown("qk_norm", c.Word("qk_norm"))
	case c.Word("activation_fn") != "gelu-approximate":
		c.Unknown("activation_fn", c.Word("activation_fn"))
	}
}
