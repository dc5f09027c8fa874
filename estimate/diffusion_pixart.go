package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// pixArt builds PixArt-alpha and PixArt-Sigma: a DiT with cross-attention to the text, whose blocks add a table
// of their own to one modulation (arXiv:2310.00426, section 2.3).
func (c Transformer) pixArt() []Layer {
	d, side := c.denoise(), min(c.side(), maxField)
	places := int(min(FLOPs(side, side), maxField))
	parts := Sequential{
		Named{"pos_embed", patchesOfPlaces{c.patchConv(false), places, c.Hidden, false}},
		Named{"adaln_single.emb.timestep_embedder", twoLinears(timeFeatures, c.Hidden, SiLU{}, true)},
		Named{"adaln_single.linear", Linear{In: c.Hidden, Out: 6 * min(c.Hidden, maxField/6)}},
		Named{"caption_projection", twoLinears(d.TextDim, c.Hidden, GELU{}, true)},
		inline{Learned{Name: "scale_shift_table", Shape: alloc.Shape{2, c.Hidden}}},
		Named{"norm_out", plainLayerNorm(c)},
		Named{"proj_out", c.toPixels(d)},
	}
	if d.Sized {
		third := twoLinears(timeFeatures, c.Hidden/3, SiLU{}, true)
		parts = append(parts, Named{"adaln_single.emb.resolution_embedder", third}, Named{"adaln_single.emb.aspect_ratio_embedder", third})
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "transformer_blocks", n: c.Blocks, block: c.pixArtBlock()}},
		before: func(f *Flow, x Tensor) (Tensor, []Tensor) {
			batch := x.Dim(0)
			x = f.Call("pos_embed", x)
			time := embedTime(f, "adaln_single.emb.timestep_embedder", batch)
			if d.Sized {
				size := f.View(embedTime(f, "adaln_single.emb.resolution_embedder", 2*batch), batch, -1)
				time = f.Add(time, f.Cat(1, size, embedTime(f, "adaln_single.emb.aspect_ratio_embedder", batch)))
			}
			modulation := f.Call("adaln_single.linear", f.Apply(SiLU{}, time))
			return x, []Tensor{f.Call("caption_projection", f.Input(1)), modulation, time}
		},
		after: func(f *Flow, x Tensor, beside []Tensor) Tensor {
			m := tabled(f, beside[2], 2, c.Hidden)
			return c.pixels(f, f.Call("proj_out", modulated(f, "norm_out", x, m[1], m[0])))
		},
	}.layers()
}

// tabled are the n parts, each (batch, 1, width), of the layer's table and what is added to it.
func tabled(f *Flow, x Tensor, n, width int) []Tensor {
	y := f.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Dim(0), n, width}, Params: true})
	return chunks(f, f.View(y, x.Dim(0), -1), n)
}

func (c Transformer) pixArtBlock() Layer {
	attention := imageAttention{c.Hidden, c.Hidden, c.Heads, true}.layer()
	parts := Sequential{
		inline{Learned{Name: "scale_shift_table", Shape: alloc.Shape{6, c.Hidden}}},
		Named{"norm1", plainLayerNorm(c)},
		Named{"attn1", attention},
		Named{"norm2", plainLayerNorm(c)},
		Named{"attn2", attention},
		Named{"ff", imageMLP(c)},
	}
	return Module{Name: "TransformerBlock", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		text, m := f.Beside(0), tabled(f, f.Beside(1), 6, c.Hidden)
		y := modulated(f, "norm1", x, m[1], m[0])
		x = f.Add(x, f.Mul(f.Call("attn1", y, y), m[2]))
		f.hold(y)
		x = f.Add(x, f.Call("attn2", x, text))
		y = modulated(f, "norm2", x, m[4], m[3])
		z := f.Add(x, f.Mul(f.Call("ff", y), m[5]))
		f.hold(y)
		return z
	}}
}

// imageAttention is diffusers' Attention, of x to what it is called with besides. Its output is divided by a
// number that is mostly 1.
type imageAttention struct {
	width, seen, heads int
	bias               bool // of queries, keys and values
}

func (l imageAttention) layer() Layer {
	of, seen := Linear{In: l.width, Out: l.width, NoBias: !l.bias, Split: ByColumns}, Linear{In: l.seen, Out: l.width, NoBias: !l.bias, Split: ByColumns}
	parts := Sequential{Named{"to_q", of}, Named{"to_k", seen}, Named{"to_v", seen}, Named{"to_out.0", Linear{In: l.width, Out: l.width, Split: ByRows}}}
	return Module{Name: "Attention", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		seen := f.Beside(0)
		q, k, v := f.Call("to_q", x), f.Call("to_k", seen), f.Call("to_v", seen)
		y := f.Scale(f.Call("to_out.0", f.Attention(q, k, v, l.heads, l.width/max(1, l.heads))))
		f.hold(q, k, v)
		return y
	}}
}

// toPixels makes the pixels of each place.
func (c Transformer) toPixels(d Denoiser) Layer {
	return Linear{In: c.Hidden, Out: int(min(FLOPs(c.Patch, c.Patch, d.Out), maxField))}
}

// pixels puts the pixels of all places into an image.
func (c Transformer) pixels(f *Flow, x Tensor) Tensor {
	image := f.Input(0)
	return f.Copy(f.View(x, x.Dim(0), -1, image.Dim(2), image.Dim(3)))
}

// patchesOfPlaces cuts an image into patches and adds positions that are not trained.
type patchesOfPlaces struct {
	proj           Layer
	places, hidden int
	copied         bool // the sum, whose channels come first in memory
}

// Kind names the row.
func (patchesOfPlaces) Kind() string { return "Patches" }

// Declare implements Layer.
func (l patchesOfPlaces) Declare(d *Declaration) {
	d.Layer("proj", l.proj)
	d.Buffer("pos_embed", 1, l.places, l.hidden)
}

// Forward implements Layer.
func (l patchesOfPlaces) Forward(t *Tape, x Tensor) (Tensor, error) {
	x, err := t.Call("proj", l.proj, x)
	if err == nil {
		x, err = flatPatches{}.Forward(t, x)
	}
	if err == nil {
		x, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape, PassGrad: true})
	}
	if err != nil || !l.copied {
		return x, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
}
