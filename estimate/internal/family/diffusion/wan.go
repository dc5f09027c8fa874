package diffusion

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Wan makes videos, with cross-attention to the text, one modulation for all blocks.
var Wan = &family.Family{
	Name:   "Wan",
	Input:  wanInput,
	Makes:  true,
	Rate:   4,
	Frames: wanFrames,
	Layers: wan,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "WanTransformer3DModel", Read: readWan}},
}

// Usual latent frames of Wan, for 81 frames, their side for 480 pixels, and the tokens that CLIP makes of the image
// from which a video begins.
const (
	wanFrames = 21
	wanSide   = 60
	wanImage  = 257
)

// wan builds Wan (arXiv:2503.20314), which differs from PixArt in patches of videos, norms over all heads of queries and
// keys, rotation by frame, row and column, and modulations in float32.
func wan(c family.Transformer) []tape.Layer {
	d := denoise(c)
	parts := tape.Sequential{
		tape.Inline(rotaryBuffers{d.Rotary, c.HeadWidth()}),
		tape.As("patch_embedding", videoPatches(c, d)),
		tape.As("condition_embedder.time_embedder", twoLinears(d.timed(), c.Hidden, layer.SiLU{}, true)),
		tape.As("condition_embedder.time_proj", layer.Linear{In: c.Hidden, Out: setting.Product(c.Hidden, 6)}),
		tape.As("condition_embedder.text_embedder", twoLinears(d.TextDim, c.Hidden, layer.GELU{}, true)),
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{1, 2, c.Hidden}}),
		tape.As("norm_out", plainLayerNorm(c)),
		tape.As("proj_out", layer.Linear{In: c.Hidden, Out: setting.Product(d.Out, d.Along, c.Patch, c.Patch)}),
	}
	if d.ImageDim > 0 {
		parts = append(parts, tape.As("condition_embedder.image_embedder", wanImages(c, d)))
	}
	return denoiser{
		parts:  parts,
		blocks: []numbered{{name: "blocks", n: c.Blocks, block: wanBlock(c, d)}},
		before: func(f *tape.Flow, x tape.Tensor) (tape.Tensor, []tape.Tensor) {
			batch := x.Dim(0)
			patches := f.Call("patch_embedding", x)
			flat := f.Copy(f.Permute(f.View(patches, batch, c.Hidden, -1), 0, 2, 1))
			beside := tables(c, f, flat.Dim(1))
			time := f.Call("condition_embedder.time_embedder", f.Const(f.Activation(), batch, d.timed()))
			modulation := f.Call("condition_embedder.time_proj", f.Apply(layer.SiLU{}, time))
			text := f.Call("condition_embedder.text_embedder", f.Input(1))
			if d.ImageDim > 0 {
				images := f.Call("condition_embedder.image_embedder", f.Input(2))
				text = f.Cat(1, images, text)
				beside = append(beside, text, modulation, time, images) // held to the end
				return flat, beside
			}
			return flat, append(beside, text, modulation, time)
		},
		after: func(f *tape.Flow, x tape.Tensor, beside []tape.Tensor) tape.Tensor {
			m := tabled(f, beside[4], 2, c.Hidden)
			y := wideModulated(f, "norm_out", x, m[1], m[0])
			f.Hold(beside...)
			return filmed(f, f.Call("proj_out", y), d.Out)
		},
	}.layers()
}

// videoPatches is the convolution that cuts a video into patches.
func videoPatches(c family.Transformer, d Denoiser) tape.Layer {
	size := [3]int{d.Along, c.Patch, c.Patch}
	return layer.Conv3d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Kernels: size, Strides: size}
}

// filmed puts the pixels of all positions together to a video with this many channels.
func filmed(f *tape.Flow, x tape.Tensor, channels int) tape.Tensor {
	video := f.Input(0)
	return f.Copy(f.View(x, x.Dim(0), channels, -1, video.Dim(3), video.Dim(4)))
}

// rotaryBuffers holds the tables from which those of a video are made.
type rotaryBuffers struct{ positions, size int }

func (l rotaryBuffers) Declare(d *tape.Declaration) {
	for _, name := range []string{"rope.freqs_cos", "rope.freqs_sin"} {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{l.positions, l.size}, DType: alloc.Float32, Buffer: true})
	}
}

func (rotaryBuffers) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// wideModulated records norm(x) (1 + scale) + shift in float32.
func wideModulated(f *tape.Flow, norm string, x, scale, shift tape.Tensor) tape.Tensor {
	return f.In(x.DType, modulated(f, norm, f.In(alloc.Float32, x), scale, shift))
}

// wanImages embeds the image from which a video begins.
func wanImages(c family.Transformer, d Denoiser) tape.Layer {
	parts := tape.Sequential{
		tape.As("norm1", layer.LayerNorm{Size: d.ImageDim}),
		tape.As("ff", tape.Sequential{tape.As("net.0.proj", layer.Linear{In: d.ImageDim, Out: d.ImageDim}), tape.Inline(layer.GELU{}), tape.As("net.2", layer.Linear{In: d.ImageDim, Out: c.Hidden})}),
		tape.As("norm2", layer.LayerNorm{Size: c.Hidden}),
	}
	if d.ImagePositions > 0 {
		parts = append(tape.Sequential{tape.Inline(wanPositions{d.ImagePositions, d.ImageDim})}, parts...)
	}
	return parts
}

// wanPositions adds learned positions to pairs of images.
type wanPositions struct{ positions, width int }

func (l wanPositions) Declare(d *tape.Declaration) { d.Param("pos_embed", 1, l.positions, l.width) }

func (l wanPositions) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true, Params: true})
}

// acrossHeads is attention from x to a text, or to x itself, with norms over all heads of queries and keys.
type acrossHeads struct {
	c      family.Transformer
	images int                                           // width of the embedded image that it reads besides the text; 0 means none
	turn   func(f *tape.Flow, x tape.Tensor) tape.Tensor // rotates queries and keys; nil where it reads a text
	noBias bool                                          // of queries, keys and values
	noOut  bool                                          // the output has no bias
}

func (l acrossHeads) layer() tape.Layer {
	linear, norm := layer.Linear{In: l.c.Hidden, Out: l.c.Hidden, NoBias: l.noBias, Split: layer.ByColumns}, layer.RMSNorm{Size: l.c.Hidden}
	parts := tape.Sequential{tape.As("to_q", linear), tape.As("to_k", linear), tape.As("to_v", linear), tape.As("norm_q", norm), tape.As("norm_k", norm)}
	if l.images > 0 {
		added := layer.Linear{In: l.images, Out: l.c.Hidden, Split: layer.ByColumns}
		parts = append(parts, tape.As("add_k_proj", added), tape.As("add_v_proj", added), tape.As("norm_added_k", norm))
	}
	parts = append(parts, tape.As("to_out.0", layer.Linear{In: l.c.Hidden, Out: l.c.Hidden, NoBias: l.noOut, Split: layer.ByRows}))
	return tape.Module{Name: "Attention", Parts: parts, Run: l.run}
}

func (l acrossHeads) run(f *tape.Flow, x tape.Tensor) tape.Tensor {
	seen, images := x, tape.Tensor{}
	if l.turn == nil {
		seen = f.Beside(0)
	}
	if l.images > 0 {
		first := min(wanImage, seen.Dim(1)-1)
		images, seen = f.Part(seen, 1, first), f.From(seen, 1, first)
	}
	q, k, v := f.Call("to_q", x), f.Call("to_k", seen), f.Call("to_v", seen)
	q, k = f.Call("norm_q", q), f.Call("norm_k", k)
	if l.turn != nil {
		q, k = l.turn(f, q), l.turn(f, k)
	}
	var begun tape.Tensor
	held := []tape.Tensor{q, k, v, x}
	if l.images > 0 {
		key, value := f.Call("add_k_proj", images), f.Call("add_v_proj", images)
		key = f.Call("norm_added_k", key)
		begun = layer.ScaledDotProduct(f.Tape, q, key, value, l.c.Heads, l.c.HeadWidth())
		held = append(held, key, value)
	}
	y := layer.ScaledDotProduct(f.Tape, q, k, v, l.c.Heads, l.c.HeadWidth())
	if l.images > 0 {
		y = f.Add(y, begun)
		f.Hold(begun)
	}
	z := f.Call("to_out.0", y)
	f.Hold(held...)
	return z
}

// turnedByHalves rotates x by the tables beside it. Each half of the result is computed in float32 and written to its
// places in new memory (diffusers, transformer_wan.py, apply_rotary_emb).
func turnedByHalves(f *tape.Flow, x tape.Tensor) tape.Tensor {
	cos, sin := f.Beside(0), f.Beside(1)
	out := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
	for range 2 {
		half := slices.Clone(x.Shape)
		half[2] = max(1, half[2]/2)
		a := f.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: half, DType: cos.DType})
		b := f.Op(tape.Op{In: []tape.Tensor{x, sin}, Shape: half, DType: sin.DType})
		out = f.Op(tape.Op{In: []tape.Tensor{out, f.Add(a, b)}, Shape: x.Shape, InPlace: true})
	}
	return out
}

func wanBlock(c family.Transformer, d Denoiser) tape.Layer {
	parts := tape.Sequential{
		tape.Inline(layer.Learned{Name: "scale_shift_table", Shape: alloc.Shape{1, 6, c.Hidden}}),
		tape.As("norm1", plainLayerNorm(c)), tape.As("attn1", acrossHeads{c: c, turn: turnedByHalves}.layer()),
		tape.As("attn2", acrossHeads{c: c, images: d.AddedDim}.layer()),
		tape.As("norm3", plainLayerNorm(c)), tape.As("ffn", imageMLP(c)),
	}
	if d.NormsCross {
		parts = append(parts, tape.As("norm2", layer.LayerNorm{Size: c.Hidden}))
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		cos, sin, text := f.Beside(0), f.Beside(1), f.Beside(2)
		m := tabled(f, f.In(alloc.Float32, f.Beside(3)), 6, c.Hidden)
		gated := func(x, y, gate tape.Tensor) tape.Tensor {
			return f.In(x.DType, f.Add(f.In(alloc.Float32, x), f.Mul(f.In(alloc.Float32, y), gate)))
		}
		y := wideModulated(f, "norm1", x, m[1], m[0])
		attention := f.Call("attn1", y, cos, sin)
		z := gated(x, attention, m[2])
		f.Hold(y)
		y = z
		if d.NormsCross {
			y = inFloat32(f, z, func(x tape.Tensor) tape.Tensor { return f.Call("norm2", x) })
		}
		seen := f.Call("attn2", y, text)
		f.Hold(attention)
		w := f.Add(z, seen)
		f.Hold(y)
		y = wideModulated(f, "norm3", w, m[4], m[3])
		out := gated(w, f.Call("ffn", y), m[5])
		f.Hold(x, y, seen)
		return out
	}}
}

// wanInput returns a noisy latent video, a text and, where the model reads it, the image from which the video begins.
func wanInput(a *family.Model, batch, length int) []family.Input {
	d := numbersOf(a)
	inputs := videoInput(a, batch, cmp.Or(length, usualTokens), d.TextDim)
	if d.ImageDim > 0 {
		inputs = append(inputs, family.Reals(batch, wanImage, d.ImageDim))
	}
	return inputs
}

func readWan(c *family.Config, a *family.Model) {
	d := &Denoiser{Along: 1}
	a.Own, a.Image = d, wanSide
	c.Number(&a.Heads, "num_attention_heads", 40)
	c.Number(&a.HeadSize, "attention_head_dim", 128)
	c.Number(&a.Blocks, "num_layers", 40)
	c.Number(&a.Channels, "in_channels", 16)
	c.Number(&d.Out, "out_channels", a.Channels)
	c.Number(&d.TextDim, "text_dim", 4096)
	c.Number(&a.FFN, "ffn_dim", 13824)
	c.Number(&d.TimeDim, "freq_dim", timeFeatures)
	c.Number(&d.Rotary, "rope_max_seq_len", 1024)
	c.Times(&a.Hidden, "attention_head_dim", a.Heads, float64(a.HeadSize))
	d.NormsCross = c.Flag("cross_attn_norm", true)
	c.Harmless("qk_norm") // the code has one norm, whatever it is called
	if c.Has("image_dim") {
		c.Number(&d.ImageDim, "image_dim", 0)
	}
	if c.Has("added_kv_proj_dim") {
		c.Number(&d.AddedDim, "added_kv_proj_dim", 0)
	}
	if c.Has("pos_embed_seq_len") && d.ImageDim > 0 {
		c.Number(&d.ImagePositions, "pos_embed_seq_len", 0)
	}
	patch := positive(c, "patch_size")
	if len(patch) != 3 || patch[1] != patch[2] || patch[1] > maxLevels || patch[0] > maxLevels {
		c.Fail("patch_size", "%v: want three numbers of at most %d, the last two the same", patch, maxLevels)
		return
	}
	d.Along, a.Patch = patch[0], patch[1]
	for a.Image%a.Patch != 0 {
		a.Image++
	}
}
