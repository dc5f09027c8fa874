package diffusion

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// QwenImage makes images, with blocks of two streams, complex rotation.
var QwenImage = &family.Family{
	Name:   "Qwen-Image",
	Input:  positionsInput,
	Refers: true,
	Makes:  true,
	Heads:  family.Elementary,
	Layers: qwenImage,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "QwenImageTransformer2DModel", Read: readQwenImage}},
}

// qwenImage builds Qwen-Image (arXiv:2508.02324): blocks of two streams, which rotate queries and keys as complex
// numbers before they are joined.
func qwenImage(c family.Transformer) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.Inline(qwenTables{c.HeadWidth()}),
		tape.As("time_text_embed.timestep_embedder", twoLinears(timeFeatures, c.Hidden, layer.SiLU{}, true)),
		tape.As("txt_norm", layer.RMSNorm{Size: d.TextDim, Unfused: true, Mixed: true}),
		tape.As("img_in", layer.Linear{In: c.Channels, Out: c.Hidden}),
		tape.As("txt_in", layer.Linear{In: d.TextDim, Out: c.Hidden}),
		tape.As("norm_out.linear", layer.Linear{In: c.Hidden, Out: 2 * min(c.Hidden, setting.MaxField/2)}),
		tape.As("norm_out.norm", plainLayerNorm(c)),
		tape.As("proj_out", layer.Linear{In: c.Hidden, Out: d.Out}),
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "transformer_blocks", n: c.Blocks, block: qwenImageBlock(c)}},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			positions := x.Dim(1)
			x = f.Call("img_in", x)
			*encoded.Of(f.Tape) = f.Call("txt_in", f.Call("txt_norm", f.Input(1)))
			time := embedTime(f, "time_text_embed.timestep_embedder", x.Dim(0))
			return x, []tape.Tensor{time, f.Const(alloc.Float32, positions, 1, c.HeadWidth())}
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := adapted(f, "norm_out.linear", beside[0], 2)
			return f.Call("proj_out", modulated(f, "norm_out.norm", x, m[0], m[1]))
		},
	}.layers()
}

// qwenPositions is the number of positions that each of Qwen-Image's rotary tables has.
const qwenPositions = 4096

// qwenTables holds the tables from which the image's is made. The text's is a part of one.
type qwenTables struct{ size int }

func (l qwenTables) Declare(d *tape.Declaration) {
	for _, name := range []string{"pos_embed.pos_freqs", "pos_embed.neg_freqs"} {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{qwenPositions, l.size}, DType: alloc.Float32, Buffer: true})
	}
}

func (qwenTables) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// qwenImageBlock returns a block that reads and changes encoded.
func qwenImageBlock(c family.Transformer) tape.Layer {
	parts := append(projections(c, ofImage, true), projections(c, ofText, true)...)
	for _, stream := range []string{"img", "txt"} {
		parts = append(parts,
			tape.As(stream+"_mod.1", layer.Linear{In: c.Hidden, Out: 6 * min(c.Hidden, setting.MaxField/6)}),
			tape.As(stream+"_norm1", plainLayerNorm(c)), tape.As(stream+"_norm2", plainLayerNorm(c)), tape.As(stream+"_mlp", imageMLP(c)))
	}
	return tape.Module{Name: "TwoStreams", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text, condition, table := *encoded.Of(f.Tape), f.Beside(0), f.Beside(1)
		m, n := adapted(f, "img_mod.1", condition, 6), adapted(f, "txt_mod.1", condition, 6)
		imageNormed := modulated(f, "img_norm1", x, m[1], m[0])
		textNormed := modulated(f, "txt_norm1", text, n[1], n[0])
		of, words := headed(c, f, imageNormed, ofImage), headed(c, f, textNormed, ofText)
		for i := range 2 {
			of[i] = f.In(of[i].DType, f.Mul(f.In(alloc.Float32, of[i]), table)) // as complex numbers, in float32
			words[i] = f.In(words[i].DType, f.Scale(f.In(alloc.Float32, words[i])))
		}
		var both [3]tape.Tensor
		for i := range both {
			both[i] = f.Cat(1, words[i], of[i])
		}
		y := attended(c, f, both, nil)
		f.Hold(append(of[:], words[:]...)...)
		image, said := f.Call(ofImage.Out, stretch(f, y, x.Dim(1))), f.Call(ofText.Out, stretch(f, y, text.Dim(1)))
		out := finished(f, x, image, m, "img_norm2", "img_mlp")
		*encoded.Of(f.Tape) = finished(f, text, said, n, "txt_norm2", "txt_mlp")
		f.Hold(imageNormed, textNormed, text, image, said, out)
		return out
	}}
}

func readQwenImage(c *family.Config, a *family.Model) {
	denoiserSettings(c, a, 24, 128, 60, 64, 2)
	if c.Flag("zero_cond_t", false) || c.Flag("use_additional_t_cond", false) || c.Flag("use_layer3d_rope", false) {
		c.Unknown("zero_cond_t, use_additional_t_cond, use_layer3d_rope", "true")
	}
	if !c.Has("out_channels") {
		numbersOf(a).Out = 16
	}
	fluxSettings(c, a, 1, 3584, false, 4)
}
