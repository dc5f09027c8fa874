package diffusion

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SD3 makes images, with blocks of two streams over patches (Stable Diffusion 3 and 3.5).
var SD3 = &family.Family{
	Name:   "Stable Diffusion 3",
	Input:  imageInput,
	Makes:  true,
	Heads:  family.ElementaryIfAny,
	Layers: sd3,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "SD3Transformer2DModel", Read: readSD3}},
}

// sd3 builds Stable Diffusion 3 and 3.5 (arXiv:2403.03206): blocks of two streams like FLUX.1's,
// without rotation, over patches of the image. The last block drops the text.
func sd3(c family.Transformer) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.As("pos_embed", positionedPatches{c.PatchConv(false), c.Positions, c.Hidden, true}),
		tape.As("context_embedder", layer.Linear{In: d.TextDim, Out: c.Hidden}),
		tape.As("norm_out.linear", layer.Linear{In: c.Hidden, Out: 2 * min(c.Hidden, setting.MaxField/2)}),
		tape.As("norm_out.norm", plainLayerNorm(c)),
		tape.As("proj_out", toPixels(c, d)),
	}
	s := fluxStyle{bias: true, time: "time_text_embed", norm: ".norm"}
	blocks := func(from, to int, dual, last bool) numbered {
		return numbered{name: "transformer_blocks", from: from, n: max(0, to-from), block: sd3Block(c, s, dual, last)}
	}
	dual := max(0, min(d.DualBlocks, c.Blocks-1))
	return denoiser{
		parts:  append(parts, fluxCondition(c, s)...),
		blocks: []numbered{blocks(0, dual, true, false), blocks(dual, c.Blocks-1, false, false), blocks(max(0, c.Blocks-1), c.Blocks, d.DualBlocks >= c.Blocks, true)},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			x = f.Call("pos_embed", x)
			condition := fluxConditioned(c, f, s, x.Dim(0))
			*encoded.Of(f.Tape) = f.Call("context_embedder", f.Input(1))
			return x, condition
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := adapted(f, "norm_out.linear", beside[0], 2)
			return pixels(c, f, f.Call("proj_out", modulated(f, "norm_out.norm", x, m[1], m[0])))
		},
	}.layers()
}

// normNames returns the names, without those of the norms of queries and keys if there are no such
// norms.
func normNames(c family.Transformer, n layer.AttentionNames) layer.AttentionNames {
	if c.Family.OrLlama().Heads == family.ElementaryIfAny && c.QKNorm == layer.NoQKNorm {
		n.QNorm, n.KNorm = "", ""
	}
	return n
}

// sd3Block is a block of two streams. In a dual block the image also attends to itself, with a
// modulation of its own. The last block makes no text.
func sd3Block(c family.Transformer, s fluxStyle, dual, last bool) tape.Layer {
	ofText, second := normNames(c, ofText), normNames(c, layer.AttentionNames{
		Q: "attn2.to_q", K: "attn2.to_k", V: "attn2.to_v", Out: "attn2.to_out.0", QNorm: "attn2.norm_q", KNorm: "attn2.norm_k"})
	imageParts, textParts := 6, 6
	if dual {
		imageParts = 9
	}
	if last {
		textParts, ofText.Out = 2, ""
	}
	parts := append(normed(c, s, "norm1", imageParts), normed(c, s, "norm1_context", textParts)...)
	parts = append(append(parts, projections(c, normNames(c, ofImage), true)...), projections(c, ofText, true)...)
	parts = append(parts, tape.As("norm2", plainLayerNorm(c)), tape.As("ff", imageMLP(c)))
	if dual {
		parts = append(parts, projections(c, second, true)...)
	}
	if !last {
		parts = append(parts, tape.As("norm2_context", plainLayerNorm(c)), tape.As("ff_context", imageMLP(c)))
	}
	return tape.Module{Name: "TwoStreams", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text := *encoded.Of(f.Tape)
		m, n := adapted(f, "norm1.linear", f.Beside(0), imageParts), adapted(f, "norm1_context.linear", f.Beside(0), textParts)
		normal := f.Call("norm1.norm", x)
		y := f.Add(f.Mul(normal, f.Scale(m[1])), m[0])
		var z tape.Tensor
		if dual {
			z = f.Add(f.Mul(normal, f.Scale(m[7])), m[6])
		}
		image, words := together(c, f, y, modulated(f, "norm1_context.norm", text, n[1], n[0]), nil)
		all := x
		if dual {
			all = f.Add(x, f.Mul(image, m[2]))
			image, m[2] = f.Call(second.Out, attended(c, f, headed(c, f, z, second), nil)), m[8]
		}
		out := finished(f, all, image, m, "norm2", "ff")
		if !last {
			*encoded.Of(f.Tape) = finished(f, text, f.Call(ofText.Out, words), n, "norm2_context", "ff_context")
		}
		f.Hold(text, y, image, words, out)
		return out
	}}
}

func readSD3(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 18, 64, 18, 16, 2)
	m, projected, side := numbersOf(a), 0, 0
	c.Number(&a.Image, "sample_size", 128)
	c.Number(&m.TextDim, "joint_attention_dim", 4096)
	c.Number(&m.PooledDim, "pooled_projection_dim", 2048)
	c.Number(&projected, "caption_projection_dim", 1152)
	c.Number(&side, "pos_embed_max_size", 96)
	for i, block := range c.List("dual_attention_layers") {
		if block != i {
			c.Unknown("dual_attention_layers", "others than the first")
		}
	}
	m.DualBlocks = len(c.List("dual_attention_layers"))
	switch {
	case projected != a.Hidden:
		c.Unknown("caption_projection_dim", "another width than the model's")
	case c.Word("qk_norm") != "" && c.Word("qk_norm") != "rms_norm":
		c.Unknown("qk_norm", c.Word("qk_norm"))
	case a.Image%a.Patch != 0 || a.Image/a.Patch > side:
		c.Fail("sample_size", "an image of %d does not divide into at most %d patches of %d along a side", a.Image, side, a.Patch)
	case c.Word("qk_norm") != "":
		a.QKNorm = layer.NormHeads
	}
	c.Times(&a.Positions, "pos_embed_max_size", side, float64(side))
	c.Times(&a.FFN, "attention_head_dim", a.Hidden, 4)
}
