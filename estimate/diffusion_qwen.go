package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// qwenImage builds Qwen-Image (arXiv:2508.02324): blocks of two streams, which rotate queries and keys as complex
// numbers before they are joined.
func (c Transformer) qwenImage() []Layer {
	d := c.denoise()
	parts := Sequential{
		inline{qwenTables{c.headSize()}},
		Named{"time_text_embed.timestep_embedder", twoLinears(timeFeatures, c.Hidden, SiLU{}, true)},
		Named{"txt_norm", RMSNorm{Size: d.TextDim, Unfused: true, mixed: true}},
		Named{"img_in", Linear{In: c.Channels, Out: c.Hidden}},
		Named{"txt_in", Linear{In: d.TextDim, Out: c.Hidden}},
		Named{"norm_out.linear", Linear{In: c.Hidden, Out: 2 * min(c.Hidden, maxField/2)}},
		Named{"norm_out.norm", plainLayerNorm(c)},
		Named{"proj_out", Linear{In: c.Hidden, Out: d.Out}},
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "transformer_blocks", n: c.Blocks, block: c.qwenImageBlock()}},
		before: func(f *Flow, x Tensor) (Tensor, []Tensor) {
			places := x.Dim(1)
			x = f.Call("img_in", x)
			f.t.encoded = f.Call("txt_in", f.Call("txt_norm", f.Input(1)))
			time := embedTime(f, "time_text_embed.timestep_embedder", x.Dim(0))
			return x, []Tensor{time, f.Const(alloc.Float32, places, 1, c.headSize())}
		},
		after: func(f *Flow, x Tensor, beside []Tensor) Tensor {
			m := adapted(f, "norm_out.linear", beside[0], 2)
			return f.Call("proj_out", modulated(f, "norm_out.norm", x, m[0], m[1]))
		},
	}.layers()
}

// qwenPositions is the number of positions that each of Qwen-Image's rotary tables has.
const qwenPositions = 4096

// qwenTables are those that the image's table is made of, and of which the text's is a part.
type qwenTables struct{ size int }

// Declare implements Layer.
func (l qwenTables) Declare(d *Declaration) {
	for _, name := range []string{"pos_embed.pos_freqs", "pos_embed.neg_freqs"} {
		d.Add(Param{Name: name, Shape: alloc.Shape{qwenPositions, l.size}, DType: alloc.Float32, Buffer: true})
	}
}

// Forward implements Layer.
func (qwenTables) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }

// qwenImageBlock reads and writes the text as what the encoder returned.
func (c Transformer) qwenImageBlock() Layer {
	parts := append(c.projections(ofImage, true), c.projections(ofText, true)...)
	for _, stream := range []string{"img", "txt"} {
		parts = append(parts,
			Named{stream + "_mod.1", Linear{In: c.Hidden, Out: 6 * min(c.Hidden, maxField/6)}},
			Named{stream + "_norm1", plainLayerNorm(c)}, Named{stream + "_norm2", plainLayerNorm(c)}, Named{stream + "_mlp", imageMLP(c)})
	}
	return Module{Name: "TwoStreams", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		text, condition, table := f.t.encoded, f.Beside(0), f.Beside(1)
		m, n := adapted(f, "img_mod.1", condition, 6), adapted(f, "txt_mod.1", condition, 6)
		imageNormed := modulated(f, "img_norm1", x, m[1], m[0])
		textNormed := modulated(f, "txt_norm1", text, n[1], n[0])
		of, words := c.headed(f, imageNormed, ofImage), c.headed(f, textNormed, ofText)
		for i := range 2 {
			of[i] = f.in(of[i].DType, f.Mul(f.in(alloc.Float32, of[i]), table)) // as complex numbers, in float32
			words[i] = f.in(words[i].DType, f.Scale(f.in(alloc.Float32, words[i])))
		}
		var both [3]Tensor
		for i := range both {
			both[i] = f.Cat(1, words[i], of[i])
		}
		y := c.attended(f, both, nil)
		f.hold(append(of[:], words[:]...)...)
		image, said := f.Call(ofImage.out, stretch(f, y, x.Dim(1))), f.Call(ofText.out, stretch(f, y, text.Dim(1)))
		out := finished(f, x, image, m, "img_norm2", "img_mlp")
		f.t.encoded = finished(f, text, said, n, "txt_norm2", "txt_mlp")
		f.hold(imageNormed, textNormed, text, image, said, out)
		return out
	}}
}
