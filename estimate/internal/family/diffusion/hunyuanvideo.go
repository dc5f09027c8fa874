package diffusion

import (
	"cmp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// HunyuanVideo makes videos, with the blocks of FLUX.1.
var HunyuanVideo = &family.Family{
	Name:   "HunyuanVideo",
	Input:  hunyuanInput,
	Makes:  true,
	Rate:   4,
	Frames: hunyuanFrames,
	Heads:  family.Elementary,
	Layers: hunyuanVideo,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "HunyuanVideoTransformer3DModel", Read: readHunyuanVideo}},
}

// Usual latent frames of HunyuanVideo, for 129 frames, their side for 512 pixels, and the number of tokens of a text.
const (
	hunyuanFrames = 33
	hunyuanSide   = 64
	hunyuanTokens = 256
)

// hunyuanVideo builds HunyuanVideo (arXiv:2412.03603), which differs from FLUX.1 in patches of videos, in blocks through
// which the text runs first, and in that only the video's positions rotate.
func hunyuanVideo(c family.Transformer) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.As("x_embedder.proj", videoPatches(c, d)),
		tape.As("context_embedder", hunyuanText(c, d)),
		tape.As("norm_out.linear", layer.Linear{In: c.Hidden, Out: setting.Product(c.Hidden, 2)}),
		tape.As("norm_out.norm", plainLayerNorm(c)),
		tape.As("proj_out", layer.Linear{In: c.Hidden, Out: setting.Product(d.Out, d.Along, c.Patch, c.Patch)}),
	}
	return denoiser{
		parts: append(parts, fluxCondition(c, firstFlux)...),
		blocks: []numbered{
			{name: "transformer_blocks", n: c.Blocks, block: hunyuanBlock(c)},
			{name: "single_transformer_blocks", n: d.SingleBlocks, block: hunyuanSingle(c)},
		},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			batch, positions := x.Dim(0), x.Dim(2)/d.Along*(x.Dim(3)/c.Patch)*(x.Dim(4)/c.Patch)
			beside := append(tables(c, f, positions), fluxConditioned(c, f, firstFlux, batch)...)
			patches := f.View(f.Call("x_embedder.proj", x), batch, c.Hidden, -1)
			*encoded.Of(f.Tape) = f.Call("context_embedder", f.Input(1))
			return f.Permute(patches, 0, 2, 1), beside
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := adapted(f, "norm_out.linear", beside[conditionBeside], 2)
			y := f.Call("proj_out", modulated(f, "norm_out.norm", x, m[0], m[1]))
			f.Hold(beside...)
			return filmed(f, y, d.Out)
		},
	}.layers()
}

// hunyuanText is what the text runs through before the blocks: its mean and the timestep gate blocks of attention.
func hunyuanText(c family.Transformer, d Denoiser) tape.Layer {
	parts := tape.Sequential{
		tape.As("time_text_embed.timestep_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, true)),
		tape.As("time_text_embed.text_embedder", twoLinears(d.TextDim, c.Hidden, layer.SiLU{}, true)),
		tape.As("proj_in", layer.Linear{In: d.TextDim, Out: c.Hidden}),
	}
	var names []string
	for i := range max(0, min(d.Refiners, maxDenoiserBlocks)) {
		b := numbered{name: "token_refiner.refiner_blocks"}
		names = append(names, b.path(i))
		parts = append(parts, tape.As(b.path(i), hunyuanRefiner(c)))
	}
	return tape.Module{Name: "TokenRefiner", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		weighed := f.Scale(f.In(alloc.Float32, x))
		mean := f.In(x.DType, f.Op(tape.Op{In: []tape.Tensor{weighed}, Shape: alloc.Shape{x.Dim(0), x.Dim(2)}}))
		time := f.Add(embedTime(f, "time_text_embed.timestep_embedder", x.Dim(0)), f.Call("time_text_embed.text_embedder", mean))
		y := f.Call("proj_in", x)
		mask := f.Const(alloc.Bool, x.Dim(0), 1, x.Dim(1), x.Dim(1))
		for _, name := range names {
			y = f.Call(name, y, time)
		}
		f.Hold(mask)
		return y
	}}
}

func hunyuanRefiner(c family.Transformer) tape.Layer {
	wide := setting.Product(c.Hidden, 4)
	parts := tape.Sequential{
		tape.As("norm1", layer.LayerNorm{Size: c.Hidden}), tape.As("attn", imageAttention{c.Hidden, c.Hidden, c.Heads, true}.layer()),
		tape.As("norm2", layer.LayerNorm{Size: c.Hidden}), tape.As("norm_out.linear", layer.Linear{In: c.Hidden, Out: setting.Product(c.Hidden, 2)}),
		tape.As("ff.net.0.proj", layer.Linear{In: c.Hidden, Out: wide}), tape.As("ff.net.2", layer.Linear{In: wide, Out: c.Hidden}),
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("norm1", x)
		attention := f.Call("attn", y, y)
		m := adapted(f, "norm_out.linear", f.Beside(0), 2)
		z := f.Add(x, f.Mul(attention, m[0]))
		ff := f.Call("ff.net.2", f.Apply(layer.SiLU{}, f.Call("ff.net.0.proj", f.Call("norm2", z))))
		out := f.Add(z, f.Mul(ff, m[1]))
		f.Hold(x, y, attention, ff)
		return out
	}}
}

// hunyuanBlock is a block of two streams, as in FLUX.1.
func hunyuanBlock(c family.Transformer) tape.Layer {
	return tape.Module{Name: "TwoStreams", Parts: twoStreamsParts(c, firstFlux), Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text, condition := *encoded.Of(f.Tape), f.Beside(conditionBeside)
		m, n := adapted(f, "norm1.linear", condition, 6), adapted(f, "norm1_context.linear", condition, 6)
		video := modulated(f, "norm1.norm", x, m[1], m[0])
		words := modulated(f, "norm1_context.norm", text, n[1], n[0])
		of := headed(c, f, video, ofImage)
		for i := range 2 {
			of[i] = turned(f, of[i], f.Beside(0), f.Beside(1))
		}
		said := headed(c, f, words, ofText)
		for i := range of {
			of[i] = f.Cat(1, of[i], said[i])
		}
		y := attended(c, f, of, nil)
		f.Hold(said[:]...)
		seen, heard := f.Call(ofImage.Out, stretch(f, y, x.Dim(1))), f.Call(ofText.Out, stretch(f, y, text.Dim(1)))
		f.Hold(y)
		out := finished(f, x, seen, m, "norm2", "ff")
		*encoded.Of(f.Tape) = finished(f, text, heard, n, "norm2_context", "ff_context")
		f.Hold(video, words, text, x, seen, heard, out)
		return out
	}}
}

// hunyuanSingle is a block of one stream, as in FLUX.1. It parts video and text again before the attention, which joins
// them once more.
func hunyuanSingle(c family.Transformer) tape.Layer {
	return tape.Module{Name: "OneStream", Parts: oneStreamParts(c), Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text := *encoded.Of(f.Tape)
		all := f.Cat(1, x, text)
		m := adapted(f, "norm.linear", f.Beside(conditionBeside), 3)
		y := modulated(f, "norm.norm", all, m[1], m[0])
		mlp := f.Apply(layer.GELU{}, f.Call("proj_mlp", y))
		z := f.Cat(1, f.Split(y, 1, x.Dim(1), text.Dim(1))...)
		qkv := headed(c, f, z, ofImage)
		for i := range 2 {
			parts := f.Split(qkv[i], 1, x.Dim(1), text.Dim(1))
			qkv[i] = f.Cat(1, turned(f, parts[0], f.Beside(0), f.Beside(1)), parts[1])
		}
		w := attended(c, f, qkv, nil)
		f.Hold(y, z)
		joined := f.Cat(1, f.Split(w, 1, x.Dim(1), text.Dim(1))...)
		both := f.Cat(2, joined, mlp)
		gated := f.Mul(f.Call("proj_out", both), m[2])
		f.Hold(both)
		out := f.Add(gated, all)
		f.Hold(all, y, w, mlp, joined, text, x)
		parts := f.Split(out, 1, x.Dim(1), text.Dim(1))
		*encoded.Of(f.Tape) = parts[1]
		return parts[0]
	}}
}

// hunyuanInput returns a noisy latent video and a text.
func hunyuanInput(a *family.Model, batch, length int) []family.Input {
	return videoInput(a, batch, cmp.Or(length, hunyuanTokens), numbersOf(a).TextDim)
}

func readHunyuanVideo(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 24, 128, 20, 16, 2)
	d := numbersOf(a)
	a.Image = hunyuanSide
	d.Guided = c.Flag("guidance_embeds", true)
	c.Number(&d.SingleBlocks, "num_single_layers", 40)
	c.Number(&d.Refiners, "num_refiner_layers", 2)
	c.Number(&d.TextDim, "text_embed_dim", 4096)
	c.Number(&d.PooledDim, "pooled_projection_dim", 768)
	c.Number(&d.Along, "patch_size_t", 1)
	c.Times(&a.FFN, "mlp_ratio", a.Hidden, c.Ratio("mlp_ratio", 4))
	c.Harmless("rope_axes_dim", "rope_theta")
	for key, n := range map[string]int{"num_single_layers": d.SingleBlocks, "num_refiner_layers": d.Refiners} {
		if n > family.MaxBlocks {
			c.Fail(key, "%d blocks, more than %d", n, family.MaxBlocks)
		}
	}
	if norm := c.Word("qk_norm"); norm != "rms_norm" {
		c.Unknown("qk_norm", norm)
	}
	switch kind := c.Word("image_condition_type"); kind {
	case "", "latent_concat":
	case "token_replace": // the first frame's positions have modulations of their own
		a.Assumed = append(a.Assumed, "the first frame's own modulations are not counted, which take little")
	default:
		c.Unknown("image_condition_type", kind)
	}
	if a.Patch > maxLevels || d.Along > maxLevels {
		c.Fail("patch_size, patch_size_t", "%d and %d: want at most %d", a.Patch, d.Along, maxLevels)
		return
	}
	for a.Image%a.Patch != 0 {
		a.Image++
	}
}
