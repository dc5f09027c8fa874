package vision

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Llama4Vision is the tower of Llama 4. It reads tiles of an image, whose patches have learned and complex rotary
// positions, and joins neighbouring patches (transformers' modeling_llama4.py).
var Llama4Vision = &family.Family{
	Name:  "Llama 4's tower",
	Tower: llama4Tower,
	Look:  llama4Look,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "llama4", Base: "Llama4Model", Read: readLlama4}},
}

// llama4Adapter has the widths of the MLP that reads joined patches. The width of what the text reads is the tower's
// EmbedDim; in a model that runs it equals out.
type llama4Adapter struct {
	in, out int
	join    int // patches along a side that are joined
}

func llama4Own(c family.Transformer) llama4Adapter {
	return *setting.Or(family.Own[llama4Adapter](c), &llama4Adapter{join: 2})
}

func llama4Tower(c family.Transformer, width int) []tape.Layer {
	own, norm, side := llama4Own(c), layer.LayerNorm{Size: c.Hidden}, min(c.Side(), setting.MaxField)
	pixels, patches := setting.Product(c.Channels, c.Patch, c.Patch), setting.Product(side, side)
	parts := tape.Sequential{
		tape.As("patch_embedding.linear", layer.Linear{In: pixels, Out: c.Hidden, NoBias: true}),
		tape.Inline(llama4Placed{patches: patches, hidden: c.Hidden}),
		tape.As("rotary_embedding", family.Constants{{Name: "freqs_ci", Shape: alloc.Shape{min(patches, setting.MaxField-1) + 1, 1, c.HeadWidth() / 2}, DType: alloc.Complex64}}),
		tape.As("layernorm_pre", norm),
		tape.As("model.layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
			tape.Skip(tape.As("input_layernorm", norm), tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Rotary: true, Complex: true})),
			tape.Skip(tape.As("post_attention_layernorm", norm), tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN})),
		}}),
		tape.As("layernorm_post", norm),
		tape.As("vision_adapter.mlp", tape.Sequential{
			tape.As("fc1", layer.Linear{In: c.FFN, Out: own.in, NoBias: true}), tape.Inline(layer.GELU{}),
			tape.As("fc2", layer.Linear{In: own.out, Out: own.out, NoBias: true}), tape.Inline(layer.GELU{}),
		}),
	}
	tower := tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		tiles := x.Dim(0)
		x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{tiles, pixels, patches}}) // nn.Unfold
		x = f.Copy(f.Permute(x, 0, 2, 1))
		x = f.Call("patch_embedding.linear", x)
		x = f.Call("layernorm_pre", f.Apply(llama4Placed{patches: patches, hidden: c.Hidden}, x))
		x = f.Call("layernorm_post", f.Call("model.layers", x))
		// Each of the two permutations copies.
		x = f.Copy(f.Copy(f.Part(x, 1, patches)))
		x = f.Call("vision_adapter.mlp", f.View(x, tiles, -1, c.FFN))
		family.Return(f.Tape, x)
		return x
	}}
	return []tape.Layer{
		tape.As("vision_model", tower),
		tape.As("multi_modal_projector.linear_1", layer.Linear{In: c.EmbedDim, Out: width, NoBias: true}),
	}
}

// llama4Placed puts a class token after the patches and adds learned positions.
type llama4Placed struct{ patches, hidden int }

func (l llama4Placed) Declare(d *tape.Declaration) {
	d.Param("class_embedding", l.hidden)
	d.Param("positional_embedding_vlm", min(l.patches, setting.MaxField-1)+1, l.hidden)
}

func (l llama4Placed) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	shape := alloc.Shape{x.Dim(0), l.patches + 1, l.hidden}
	x = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Params: true, PassGrad: true})
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Params: true, PassGrad: true})
}

// llama4Look is that of an image in a grid of up to sixteen tiles, and whole if there are several tiles. The grid is the
// one for which the image, with its sides' ratio kept, grows least or, if no grid is large enough, shrinks least; of
// equal ones the smallest (image_processing_llama4.py, get_best_fit). Further tokens stand around the image's vectors,
// before the whole image, and after each tile (processing_llama4.py).
func llama4Look(c family.Transformer) (family.Look, error) {
	const most = 16
	own := llama4Own(c)
	if own.join < 1 || c.Side() < 1 || c.Side()%own.join != 0 {
		return family.Look{}, family.Unfit("patches do not divide into squares")
	}
	if setting.Product(own.join, own.join, c.Hidden) != c.FFN {
		return family.Look{}, family.Unfit("joined patches are not as wide as the adapter reads")
	}
	wide, high := float32(c.Prompt.Width), float32(c.Prompt.Height)
	best, rows, columns := float32(0), 1, 1
	for n := most; n >= 1; n-- {
		for y := 1; y <= n; y++ {
			if n%y != 0 {
				continue
			}
			scale := min(float32(c.Image)*float32(n/y)/wide, float32(c.Image)*float32(y)/high)
			grows, grew := scale >= 1, best >= 1
			better := best == 0 || grows && (!grew || scale < best) || !grows && !grew && scale > best
			if better || scale == best && n < rows*columns {
				best, rows, columns = scale, y, n/y
			}
		}
	}
	tiles, each := rows*columns, (c.Side()/own.join)*(c.Side()/own.join)
	tokens := each + 3
	if tiles > 1 {
		tokens, tiles = tokens+tiles*(each+1), tiles+1
	}
	return family.Look{Tokens: tokens, Sized: true, Inputs: family.Joined(tiles, c.Channels, c.Image, c.Image)}, nil
}

func readLlama4(c *family.Config, a *family.Model) {
	imageText{head: "Llama4ForConditionalGeneration", text: "llama4_text", vision: "llama4_vision_model", owns: true, numbers: func(v, _ *family.Config, t *family.Model) {
		towerNumbers(v, &t.Transformer)
		var own llama4Adapter
		t.Own = &own
		v.Number(&own.in, "projector_input_dim", 4096)
		v.Number(&own.out, "projector_output_dim", 4096)
		v.Number(&t.EmbedDim, "vision_output_dim", 4096)
		own.join = int(math.Min(math.Round(1/math.Max(1e-6, v.Ratio("pixel_shuffle_ratio", 0.5))), setting.MaxField))
	}}.read(c, a)
}
