package diffusion

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Flux makes images, with blocks of two streams and of one, modulated by the timestep (FLUX.1).
var Flux = &family.Family{
	Name:   "FLUX.1",
	Input:  positionsInput,
	Refers: true,
	Makes:  true,
	Layers: flux,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "FluxTransformer2DModel", Read: readFlux}},
}

// Flux2 is Flux with shared modulations and gated MLPs.
var Flux2 = &family.Family{
	Name:   "FLUX.2",
	Input:  positionsInput,
	Refers: true,
	Makes:  true,
	Layers: flux2,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "Flux2Transformer2DModel", Read: readFlux2}},
}

// fluxStyle says how FLUX.2 differs from FLUX.1: it makes modulations once for all blocks of a
// kind, and its MLPs have gates.
type fluxStyle struct {
	shared bool
	bias   bool
	time   string // the embedding of the timestep
	norm   string // the norm of a part with its own modulation
}

var (
	firstFlux  = fluxStyle{bias: true, time: "time_text_embed", norm: ".norm"}
	secondFlux = fluxStyle{shared: true, time: "time_guidance_embed"}
)

func flux(c family.Transformer) []tape.Layer { return fluxLayers(c, firstFlux) }

func flux2(c family.Transformer) []tape.Layer { return fluxLayers(c, secondFlux) }

// fluxLayers builds blocks in which image and text have their own weights, and blocks in which they
// form one sequence.
func fluxLayers(c family.Transformer, s fluxStyle) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.As("x_embedder", layer.Linear{In: c.Channels, Out: c.Hidden, NoBias: !s.bias}),
		tape.As("context_embedder", layer.Linear{In: d.TextDim, Out: c.Hidden, NoBias: !s.bias}),
		tape.As("norm_out.linear", layer.Linear{In: c.Hidden, Out: 2 * min(c.Hidden, setting.MaxField/2), NoBias: !s.bias}),
		tape.As("norm_out.norm", plainLayerNorm(c)),
		tape.As("proj_out", layer.Linear{In: c.Hidden, Out: d.Out, NoBias: !s.bias}),
	}
	parts = append(parts, fluxCondition(c, s)...)
	return denoiser{
		parts: parts,
		blocks: []numbered{
			{name: "transformer_blocks", n: c.Blocks, block: twoStreams(c, s)},
			{name: "single_transformer_blocks", n: d.SingleBlocks, block: oneStream(c, s), enter: s.joined},
		},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			condition := fluxConditioned(c, f, s, x.Dim(0))
			x = f.Call("x_embedder", x)
			*encoded.Of(f.Tape) = f.Call("context_embedder", f.Input(1))
			return x, append(tables(c, f, x.Dim(1)+encoded.Of(f.Tape).Dim(1)), condition...)
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			x = s.parted(f, x)
			m := adapted(f, "norm_out.linear", beside[conditionBeside], 2)
			return f.Call("proj_out", modulated(f, "norm_out.norm", x, m[0], m[1]))
		},
	}.layers()
}

// fluxCondition returns the layers that embed the timestep and the other inputs of all positions.
func fluxCondition(c family.Transformer, s fluxStyle) tape.Sequential {
	d := denoise(c)
	parts := tape.Sequential{tape.As(s.time+".timestep_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, s.bias))}
	if d.Guided {
		parts = append(parts, tape.As(s.time+".guidance_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, s.bias)))
	}
	if !s.shared {
		return append(parts, tape.As(s.time+".text_embedder", twoLinears(d.PooledDim, c.Hidden, layer.SiLU{}, s.bias)))
	}
	wide := min(c.Hidden, setting.MaxField/6)
	return append(parts,
		tape.As("double_stream_modulation_img.linear", layer.Linear{In: c.Hidden, Out: 6 * wide, NoBias: true}),
		tape.As("double_stream_modulation_txt.linear", layer.Linear{In: c.Hidden, Out: 6 * wide, NoBias: true}),
		tape.As("single_stream_modulation.linear", layer.Linear{In: c.Hidden, Out: 3 * wide, NoBias: true}),
	)
}

// fluxConditioned returns the condition for the blocks: the embedding, and the modulations if they
// are shared.
func fluxConditioned(c family.Transformer, f *tape.Flow, s fluxStyle, batch int) []tape.Tensor {
	d := denoise(c)
	y := embedTime(f, s.time+".timestep_embedder", batch)
	if d.Guided {
		y = f.Add(y, embedTime(f, s.time+".guidance_embedder", batch))
	}
	if !s.shared {
		return []tape.Tensor{f.Add(y, f.Call(s.time+".text_embedder", f.Const(f.Activation(), batch, d.PooledDim)))}
	}
	all := []tape.Tensor{y}
	for _, name := range []string{"double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation"} {
		all = append(all, f.Call(name+".linear", f.Apply(layer.SiLU{}, y)))
	}
	return all
}

// conditionBeside is the condition's index among the tensors beside a block's input. The rotary
// tables come before it, shared modulations after it.
const conditionBeside = 2

// modulations returns the n parts of a norm's modulation, or of the shared modulation of this kind.
func (s fluxStyle) modulations(f *tape.Flow, norm string, kind, n int) []tape.Tensor {
	if s.shared {
		return chunks(f, f.Beside(conditionBeside+1+kind), n)
	}
	return adapted(f, norm+".linear", f.Beside(conditionBeside), n)
}

// joined returns text and image as one sequence. FLUX.2 joins them once, FLUX.1 in each block.
func (s fluxStyle) joined(f *tape.Flow, x tape.Tensor) tape.Tensor {
	if !s.shared {
		return x
	}
	return f.Cat(1, *encoded.Of(f.Tape), x)
}

// parted returns the image part of the joined sequence.
func (s fluxStyle) parted(f *tape.Flow, x tape.Tensor) tape.Tensor {
	if !s.shared {
		return x
	}
	f.Hold(*encoded.Of(f.Tape))
	return f.Part(x, 1, x.Dim(1)-encoded.Of(f.Tape).Dim(1))
}

// normed returns a norm with n modulations, which it makes itself unless they are shared.
func normed(c family.Transformer, s fluxStyle, name string, n int) tape.Sequential {
	parts := tape.Sequential{tape.As(name+s.norm, plainLayerNorm(c))}
	if !s.shared {
		parts = append(parts, tape.As(name+".linear", layer.Linear{In: c.Hidden, Out: n * min(c.Hidden, setting.MaxField/n)}))
	}
	return parts
}

// mlp returns the MLP of a stream.
func (s fluxStyle) mlp(c family.Transformer) tape.Layer {
	if !s.shared {
		return imageMLP(c)
	}
	return tape.Module{Name: "GatedMLP", Parts: tape.Sequential{
		tape.As("linear_in", layer.Linear{In: c.Hidden, Out: 2 * min(c.FFN, setting.MaxField/2), NoBias: true, Split: layer.ByColumns}),
		tape.As("linear_out", layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: layer.ByRows}),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return f.Call("linear_out", gated(f, layer.SiLU{}, f.Call("linear_in", x)))
	}}
}

// gated records an activation of one half of the last dimension, times the other half.
func gated(f *tape.Flow, act tape.Layer, x tape.Tensor) tape.Tensor {
	half := max(1, x.Dim(-1)/2)
	parts := f.Split(x, len(x.Shape)-1, half, half)
	return f.Mul(f.Apply(act, parts[0]), parts[1])
}

// ofImage and ofText are the names of the two streams' projections.
var (
	ofImage = layer.AttentionNames{Q: "attn.to_q", K: "attn.to_k", V: "attn.to_v", Out: "attn.to_out.0", QNorm: "attn.norm_q", KNorm: "attn.norm_k"}
	ofText  = layer.AttentionNames{Q: "attn.add_q_proj", K: "attn.add_k_proj", V: "attn.add_v_proj", Out: "attn.to_add_out", QNorm: "attn.norm_added_q", KNorm: "attn.norm_added_k"}
)

// projections returns the projections of a stream.
func projections(c family.Transformer, n layer.AttentionNames, bias bool) tape.Sequential {
	linear := layer.Linear{In: c.Hidden, Out: c.Hidden, NoBias: !bias, Split: layer.ByColumns}
	parts := tape.Sequential{tape.As(n.Q, linear), tape.As(n.K, linear), tape.As(n.V, linear)}
	if n.QNorm != "" {
		own := c.Family.OrLlama().Heads != family.FusedNorms
		norm := layer.RMSNorm{Size: c.HeadWidth(), Unfused: own, Mixed: own}
		parts = append(parts, tape.As(n.QNorm, norm), tape.As(n.KNorm, norm))
	}
	if n.Out != "" {
		linear.Split = layer.ByRows
		parts = append(parts, tape.As(n.Out, linear))
	}
	return parts
}

// twoStreams is a block whose attention sees image and text together, while each has its own
// weights. It reads and changes encoded.
func twoStreams(c family.Transformer, s fluxStyle) tape.Layer {
	return tape.Module{Name: "TwoStreams", Parts: twoStreamsParts(c, s), Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text := *encoded.Of(f.Tape)
		m, n := s.modulations(f, "norm1", 0, 6), s.modulations(f, "norm1_context", 1, 6)
		imageNormed := modulated(f, "norm1"+s.norm, x, m[1], m[0])
		textNormed := modulated(f, "norm1_context"+s.norm, text, n[1], n[0])
		image, words := together(c, f, imageNormed, textNormed, f.AllBeside()[:conditionBeside])
		words = f.Call(ofText.Out, words)
		y := finished(f, x, image, m, "norm2", "ff")
		f.Hold(imageNormed)
		*encoded.Of(f.Tape) = finished(f, text, words, n, "norm2_context", "ff_context")
		f.Hold(text, image, words, y)
		return y
	}}
}

// twoStreamsParts returns the parts of a block of two streams.
func twoStreamsParts(c family.Transformer, s fluxStyle) tape.Sequential {
	parts := append(normed(c, s, "norm1", 6), normed(c, s, "norm1_context", 6)...)
	parts = append(append(parts, projections(c, ofImage, s.bias)...), projections(c, ofText, s.bias)...)
	return append(parts, tape.As("norm2", plainLayerNorm(c)), tape.As("norm2_context", plainLayerNorm(c)), tape.As("ff", s.mlp(c)), tape.As("ff_context", s.mlp(c)))
}

// together records the attention of both streams, each with its own projections. The text's part is
// returned before its output projection.
func together(c family.Transformer, f *tape.Flow, image, text tape.Tensor, tables []tape.Tensor) (tape.Tensor, tape.Tensor) {
	of, words := headed(c, f, image, normNames(c, ofImage)), headed(c, f, text, normNames(c, ofText))
	for i := range of {
		of[i] = f.Cat(1, words[i], of[i])
	}
	y := attended(c, f, of, tables)
	f.Hold(words[:]...)
	return f.Call(ofImage.Out, stretch(f, y, image.Dim(1))), stretch(f, y, text.Dim(1))
}

// finished adds attention and MLP to a stream, each multiplied by its gate.
func finished(f *tape.Flow, x, attention tape.Tensor, m []tape.Tensor, norm, mlp string) tape.Tensor {
	x = f.Add(x, f.Mul(attention, m[2]))
	y := modulated(f, norm, x, m[4], m[3])
	z := f.Add(x, f.Mul(f.Call(mlp, y), m[5]))
	f.Hold(y)
	return z
}

// oneStream is a block with attention and MLP in parallel, over text and image as one sequence.
// FLUX.1 joins and parts them in each block.
func oneStream(c family.Transformer, s fluxStyle) tape.Layer {
	parts, run := normed(c, s, "norm", 3), parallel
	wide, ffn := min(c.Hidden, setting.MaxField/4), min(c.FFN, setting.MaxField/4)
	if s.shared {
		norm := layer.RMSNorm{Size: c.HeadWidth()}
		parts = append(parts,
			tape.As("attn.to_qkv_mlp_proj", layer.Linear{In: c.Hidden, Out: 3*wide + 2*ffn, NoBias: true, Split: layer.ByColumns}),
			tape.As("attn.norm_q", norm), tape.As("attn.norm_k", norm),
			tape.As("attn.to_out", layer.Linear{In: wide + ffn, Out: c.Hidden, NoBias: true, Split: layer.ByRows}))
		run = packed
	} else {
		parts = oneStreamParts(c)
	}
	return tape.Module{Name: "OneStream", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text := *encoded.Of(f.Tape)
		all := x
		if !s.shared {
			all = f.Cat(1, text, x)
		}
		m := s.modulations(f, "norm", 2, 3)
		y := modulated(f, "norm"+s.norm, all, m[1], m[0])
		z, held := run(c, f, y, f.AllBeside())
		z = f.Mul(z, m[2])
		f.Hold(held...)
		out := f.Add(all, z)
		f.Hold(all, y, text)
		if s.shared {
			return out
		}
		*encoded.Of(f.Tape) = f.Part(out, 1, text.Dim(1))
		return f.Part(out, 1, x.Dim(1))
	}}
}

// oneStreamParts returns the parts of FLUX.1's block of one stream.
func oneStreamParts(c family.Transformer) tape.Sequential {
	alone := ofImage
	alone.Out = ""
	parts := append(normed(c, firstFlux, "norm", 3), projections(c, alone, true)...)
	wide := min(c.Hidden, setting.MaxField/4) + min(c.FFN, setting.MaxField/4)
	return append(parts, tape.As("proj_mlp", layer.Linear{In: c.Hidden, Out: c.FFN, Split: layer.ByColumns}), tape.As("proj_out", layer.Linear{In: wide, Out: c.Hidden, Split: layer.ByRows}))
}

// parallel records FLUX.1's attention and MLP of one stream. It also returns what the block holds until the result is gated.
func parallel(c family.Transformer, f *tape.Flow, x tape.Tensor, tables []tape.Tensor) (tape.Tensor, []tape.Tensor) {
	mlp := f.Apply(layer.GELU{}, f.Call("proj_mlp", x))
	y := attended(c, f, headed(c, f, x, ofImage), tables)
	both := f.Cat(2, y, mlp)
	z := f.Call("proj_out", both)
	f.Hold(mlp, y)
	return z, []tape.Tensor{both, mlp, y}
}

// packed records FLUX.2's, with one projection before both and one after.
func packed(c family.Transformer, f *tape.Flow, x tape.Tensor, tables []tape.Tensor) (tape.Tensor, []tape.Tensor) {
	all := f.Call("attn.to_qkv_mlp_proj", x)
	halves := f.Split(all, 2, 3*c.Hidden, 2*c.FFN)
	var qkv [3]tape.Tensor
	for i, part := range f.Split(halves[0], 2, c.Hidden, c.Hidden, c.Hidden) {
		qkv[i] = byHeads(c, f, part)
	}
	qkv[0], qkv[1] = f.Call("attn.norm_q", qkv[0]), f.Call("attn.norm_k", qkv[1])
	y := attended(c, f, qkv, tables)
	mlp := gated(f, layer.SiLU{}, halves[1])
	z := f.Call("attn.to_out", f.Cat(2, y, mlp))
	f.Hold(all, mlp)
	return z, nil
}

// fluxSettings reads what FLUX.1 and FLUX.2 have in common.
func fluxSettings(c *family.Config, a *family.Model, single, text int, guided bool, ratio float64) {
	m := numbersOf(a)
	m.Guided = c.Flag("guidance_embeds", guided)
	c.Number(&m.SingleBlocks, "num_single_layers", single)
	c.Number(&m.TextDim, "joint_attention_dim", text)
	if m.SingleBlocks > family.MaxBlocks {
		c.Fail("num_single_layers", "%d blocks, more than %d", m.SingleBlocks, family.MaxBlocks)
	}
	c.Times(&m.Out, "patch_size", m.Out, float64(a.Patch)*float64(a.Patch))
	c.Times(&a.FFN, "mlp_ratio", a.Hidden, ratio)
}

func readFlux(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 24, 128, 19, 64, 1)
	fluxSettings(c, a, 38, 4096, false, 4)
	c.Number(&numbersOf(a).PooledDim, "pooled_projection_dim", 768)
}

func readFlux2(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 48, 128, 8, 128, 1)
	if c.Whole("timestep_guidance_channels", 256) != 256 {
		c.Unknown("timestep_guidance_channels", "another number than 256")
	}
	fluxSettings(c, a, 48, 15360, true, c.Ratio("mlp_ratio", 3))
}
