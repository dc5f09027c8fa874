package estimate

// fluxStyle is in what FLUX.2 differs from FLUX.1: modulations are made once for all blocks of a kind, and the
// MLPs have gates.
type fluxStyle struct {
	shared bool
	bias   bool
	time   string // the embedding of the timestep
	norm   string // the norm of what has modulations of its own
}

var (
	flux1 = fluxStyle{bias: true, time: "time_text_embed", norm: ".norm"}
	flux2 = fluxStyle{shared: true, time: "time_guidance_embed"}
)

func (c Transformer) flux() []Layer  { return c.fluxLayers(flux1) }
func (c Transformer) flux2() []Layer { return c.fluxLayers(flux2) }

// fluxLayers are blocks in which the image and the text have weights of their own, and blocks in which
// they are one sequence.
func (c Transformer) fluxLayers(s fluxStyle) []Layer {
	d := c.denoise()
	parts := Sequential{
		Named{"x_embedder", Linear{In: c.Channels, Out: c.Hidden, NoBias: !s.bias}},
		Named{"context_embedder", Linear{In: d.TextDim, Out: c.Hidden, NoBias: !s.bias}},
		Named{"norm_out.linear", Linear{In: c.Hidden, Out: 2 * min(c.Hidden, maxField/2), NoBias: !s.bias}},
		Named{"norm_out.norm", plainLayerNorm(c)},
		Named{"proj_out", Linear{In: c.Hidden, Out: d.Out, NoBias: !s.bias}},
	}
	parts = append(parts, c.fluxCondition(s)...)
	return denoiser{
		parts: parts,
		blocks: []numbered{
			{name: "transformer_blocks", n: c.Blocks, block: c.twoStreams(s)},
			{name: "single_transformer_blocks", n: d.SingleBlocks, block: c.oneStream(s), enter: s.joined},
		},
		before: func(f *Flow, x Tensor) (Tensor, []Tensor) {
			condition := c.fluxConditioned(f, s, x.Dim(0))
			x = f.Call("x_embedder", x)
			f.t.encoded = f.Call("context_embedder", f.Input(1))
			return x, append(c.tables(f, x.Dim(1)+f.t.encoded.Dim(1)), condition...)
		},
		after: func(f *Flow, x Tensor, beside []Tensor) Tensor {
			x = s.parted(f, x)
			m := adapted(f, "norm_out.linear", beside[conditionBeside], 2)
			return f.Call("proj_out", modulated(f, "norm_out.norm", x, m[0], m[1]))
		},
	}.layers()
}

// fluxCondition are the layers that embed the timestep and what else all places know of.
func (c Transformer) fluxCondition(s fluxStyle) Sequential {
	d := c.denoise()
	parts := Sequential{Named{s.time + ".timestep_embedder", twoLinears(timeFeatures, c.Hidden, SiLU{}, s.bias)}}
	if d.Guided {
		parts = append(parts, Named{s.time + ".guidance_embedder", twoLinears(timeFeatures, c.Hidden, SiLU{}, s.bias)})
	}
	if !s.shared {
		return append(parts, Named{s.time + ".text_embedder", twoLinears(d.PooledDim, c.Hidden, SiLU{}, s.bias)})
	}
	wide := min(c.Hidden, maxField/6)
	return append(parts,
		Named{"double_stream_modulation_img.linear", Linear{In: c.Hidden, Out: 6 * wide, NoBias: true}},
		Named{"double_stream_modulation_txt.linear", Linear{In: c.Hidden, Out: 6 * wide, NoBias: true}},
		Named{"single_stream_modulation.linear", Linear{In: c.Hidden, Out: 3 * wide, NoBias: true}},
	)
}

// fluxConditioned is the condition of the blocks: the embedding, and the modulations where they are shared.
func (c Transformer) fluxConditioned(f *Flow, s fluxStyle, batch int) []Tensor {
	d := c.denoise()
	y := embedTime(f, s.time+".timestep_embedder", batch)
	if d.Guided {
		y = f.Add(y, embedTime(f, s.time+".guidance_embedder", batch))
	}
	if !s.shared {
		return []Tensor{f.Add(y, f.Call(s.time+".text_embedder", f.Const(f.t.Activation(), batch, d.PooledDim)))}
	}
	all := []Tensor{y}
	for _, name := range []string{"double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation"} {
		all = append(all, f.Call(name+".linear", f.Apply(SiLU{}, y)))
	}
	return all
}

// conditionBeside is the place of the condition beside the input of a block, after the rotary tables. Shared
// modulations follow it.
const conditionBeside = 2

// modulations are the n parts of the modulation of a norm, or of that of the kind that is shared.
func (s fluxStyle) modulations(f *Flow, norm string, kind, n int) []Tensor {
	if s.shared {
		return chunks(f, f.Beside(conditionBeside+1+kind), n)
	}
	return adapted(f, norm+".linear", f.Beside(conditionBeside), n)
}

// joined is the text and the image as one sequence, which FLUX.2 makes once and FLUX.1 in each block.
func (s fluxStyle) joined(f *Flow, x Tensor) Tensor {
	if !s.shared {
		return x
	}
	return f.Cat(1, f.t.encoded, x)
}

// parted is the image of one sequence.
func (s fluxStyle) parted(f *Flow, x Tensor) Tensor {
	if !s.shared {
		return x
	}
	f.hold(f.t.encoded)
	return f.Part(x, 1, x.Dim(1)-f.t.encoded.Dim(1))
}

// normed is a norm of n modulations, which it makes itself where they are not shared.
func (c Transformer) normed(s fluxStyle, name string, n int) Sequential {
	parts := Sequential{Named{name + s.norm, plainLayerNorm(c)}}
	if !s.shared {
		parts = append(parts, Named{name + ".linear", Linear{In: c.Hidden, Out: n * min(c.Hidden, maxField/n)}})
	}
	return parts
}

// mlp is that of a stream.
func (s fluxStyle) mlp(c Transformer) Layer {
	if !s.shared {
		return imageMLP(c)
	}
	return Module{Name: "GatedMLP", Parts: Sequential{
		Named{"linear_in", Linear{In: c.Hidden, Out: 2 * min(c.FFN, maxField/2), NoBias: true, Split: ByColumns}},
		Named{"linear_out", Linear{In: c.FFN, Out: c.Hidden, NoBias: true, Split: ByRows}},
	}, Run: func(f *Flow, x Tensor) Tensor { return f.Call("linear_out", gated(f, SiLU{}, f.Call("linear_in", x))) }}
}

// gated is an activation of a half of the last dimension times the other half.
func gated(f *Flow, act Layer, x Tensor) Tensor {
	half := max(1, x.Dim(-1)/2)
	parts := f.Split(x, len(x.Shape)-1, half, half)
	return f.Mul(f.Apply(act, parts[0]), parts[1])
}

// ofImage and ofText are the projections of the two streams.
var (
	ofImage = attentionNames{q: "attn.to_q", k: "attn.to_k", v: "attn.to_v", out: "attn.to_out.0", qNorm: "attn.norm_q", kNorm: "attn.norm_k"}
	ofText  = attentionNames{q: "attn.add_q_proj", k: "attn.add_k_proj", v: "attn.add_v_proj", out: "attn.to_add_out", qNorm: "attn.norm_added_q", kNorm: "attn.norm_added_k"}
)

// projections are those of a stream.
func (c Transformer) projections(n attentionNames, bias bool) Sequential {
	linear := Linear{In: c.Hidden, Out: c.Hidden, NoBias: !bias, Split: ByColumns}
	parts := Sequential{Named{n.q, linear}, Named{n.k, linear}, Named{n.v, linear}}
	if n.qNorm != "" {
		own := c.Family == SD3 || c.Family == QwenImage // in diffusers' own operations
		norm := RMSNorm{Size: c.headSize(), Unfused: own, mixed: own}
		parts = append(parts, Named{n.qNorm, norm}, Named{n.kNorm, norm})
	}
	if n.out != "" {
		linear.Split = ByRows
		parts = append(parts, Named{n.out, linear})
	}
	return parts
}

// twoStreams is a block whose attention sees image and text together and whose weights they do not share. It
// reads and writes the text as what the encoder returned.
func (c Transformer) twoStreams(s fluxStyle) Layer {
	parts := append(c.normed(s, "norm1", 6), c.normed(s, "norm1_context", 6)...)
	parts = append(append(parts, c.projections(ofImage, s.bias)...), c.projections(ofText, s.bias)...)
	parts = append(parts, Named{"norm2", plainLayerNorm(c)}, Named{"norm2_context", plainLayerNorm(c)}, Named{"ff", s.mlp(c)}, Named{"ff_context", s.mlp(c)})
	return Module{Name: "TwoStreams", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		text := f.t.encoded
		m, n := s.modulations(f, "norm1", 0, 6), s.modulations(f, "norm1_context", 1, 6)
		imageNormed := modulated(f, "norm1"+s.norm, x, m[1], m[0])
		textNormed := modulated(f, "norm1_context"+s.norm, text, n[1], n[0])
		image, words := c.together(f, imageNormed, textNormed, f.AllBeside()[:conditionBeside])
		words = f.Call(ofText.out, words)
		y := finished(f, x, image, m, "norm2", "ff")
		f.hold(imageNormed)
		f.t.encoded = finished(f, text, words, n, "norm2_context", "ff_context")
		f.hold(text, image, words, y)
		return y
	}}
}

// together is the attention of both streams, each projected by its own weights. That to the text is not projected back.
func (c Transformer) together(f *Flow, image, text Tensor, tables []Tensor) (Tensor, Tensor) {
	of, words := c.headed(f, image, c.normNames(ofImage)), c.headed(f, text, c.normNames(ofText))
	for i := range of {
		of[i] = f.Cat(1, words[i], of[i])
	}
	y := c.attended(f, of, tables)
	f.hold(words[:]...)
	return f.Call(ofImage.out, stretch(f, y, image.Dim(1))), stretch(f, y, text.Dim(1))
}

// finished adds the attention and the MLP to a stream, each times its gate.
func finished(f *Flow, x, attention Tensor, m []Tensor, norm, mlp string) Tensor {
	x = f.Add(x, f.Mul(attention, m[2]))
	y := modulated(f, norm, x, m[4], m[3])
	z := f.Add(x, f.Mul(f.Call(mlp, y), m[5]))
	f.hold(y)
	return z
}

// oneStream is a block with attention and MLP in parallel over text and image as one sequence. In FLUX.1
// they are joined and parted in each block.
func (c Transformer) oneStream(s fluxStyle) Layer {
	parts, run := c.normed(s, "norm", 3), c.parallel
	wide, ffn := min(c.Hidden, maxField/4), min(c.FFN, maxField/4)
	if s.shared {
		norm := RMSNorm{Size: c.headSize()}
		parts = append(parts,
			Named{"attn.to_qkv_mlp_proj", Linear{In: c.Hidden, Out: 3*wide + 2*ffn, NoBias: true, Split: ByColumns}},
			Named{"attn.norm_q", norm}, Named{"attn.norm_k", norm},
			Named{"attn.to_out", Linear{In: wide + ffn, Out: c.Hidden, NoBias: true, Split: ByRows}})
		run = c.packed
	} else {
		alone := ofImage
		alone.out = ""
		parts = append(parts, c.projections(alone, true)...)
		parts = append(parts, Named{"proj_mlp", Linear{In: c.Hidden, Out: c.FFN, Split: ByColumns}}, Named{"proj_out", Linear{In: wide + ffn, Out: c.Hidden, Split: ByRows}})
	}
	return Module{Name: "OneStream", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		text := f.t.encoded
		all := x
		if !s.shared {
			all = f.Cat(1, text, x)
		}
		m := s.modulations(f, "norm", 2, 3)
		y := modulated(f, "norm"+s.norm, all, m[1], m[0])
		z := f.Mul(run(f, y, f.AllBeside()), m[2])
		out := f.Add(all, z)
		f.hold(all, y, text)
		if s.shared {
			return out
		}
		f.t.encoded = f.Part(out, 1, text.Dim(1))
		return f.Part(out, 1, x.Dim(1))
	}}
}

// parallel is FLUX.1's attention and MLP of one stream.
func (c Transformer) parallel(f *Flow, x Tensor, tables []Tensor) Tensor {
	mlp := f.Apply(GELU{}, f.Call("proj_mlp", x))
	y := c.attended(f, c.headed(f, x, ofImage), tables)
	z := f.Call("proj_out", f.Cat(2, y, mlp))
	f.hold(mlp, y)
	return z
}

// packed is FLUX.2's, with one projection before them and one after.
func (c Transformer) packed(f *Flow, x Tensor, tables []Tensor) Tensor {
	all := f.Call("attn.to_qkv_mlp_proj", x)
	halves := f.Split(all, 2, 3*c.Hidden, 2*c.FFN)
	var qkv [3]Tensor
	for i, part := range f.Split(halves[0], 2, c.Hidden, c.Hidden, c.Hidden) {
		qkv[i] = c.byHeads(f, part)
	}
	qkv[0], qkv[1] = f.Call("attn.norm_q", qkv[0]), f.Call("attn.norm_k", qkv[1])
	y := c.attended(f, qkv, tables)
	mlp := gated(f, SiLU{}, halves[1])
	z := f.Call("attn.to_out", f.Cat(2, y, mlp))
	f.hold(all, mlp)
	return z
}
