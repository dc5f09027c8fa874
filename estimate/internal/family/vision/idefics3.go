package vision

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Idefics3 reads an image in tiles and whole, with a SigLIP, and joins the patches of each square
// before one layer projects them (arXiv:2408.12637; modeling_idefics3.py). SmolVLM is a small one
// (arXiv:2504.05299).
var Idefics3 = &family.Family{
	Name:  "Idefics 3's tower",
	Tower: idefics3Tower,
	Look:  idefics3Look,
	Role:  family.Encoder,
	Types: []family.Type{
		{Name: "idefics3", Base: "Idefics3Model", Read: func(c *family.Config, a *family.Model) {
			readIdefics3(c, a, "Idefics3ForConditionalGeneration", "idefics3_vision")
		}},
		{Name: "smolvlm", Base: "SmolVLMModel", Read: func(c *family.Config, a *family.Model) {
			readIdefics3(c, a, "SmolVLMForConditionalGeneration", "smolvlm_vision")
		}},
	},
}

// navitEncoder is a SigLIP that finds the position of each patch by its place in the image.
var navitEncoder = encoder{
	parts: func(c family.Transformer) tape.Sequential {
		return siglipImages(c, family.Positions{Each: true})
	},
	run: func(f *tape.Flow, c family.Transformer, x tape.Tensor) ([]tape.Tensor, tape.Tensor) {
		states := throughBlocks(f, "encoder.layers", c.Blocks, f.Call("embeddings", x))
		return states, f.Call("post_layernorm", states[len(states)-1])
	},
}

func idefics3Tower(c family.Transformer, width int) []tape.Layer {
	return []tape.Layer{
		tape.Inline(joined{}), // those images that are not padding
		tape.As("vision_model", navitEncoder.tower(c, nil, false)),
		tape.As("connector", tape.Sequential{
			tape.Inline(shuffled(setting.Or(c.Merge, 2))),
			tape.As("modality_projection.proj", layer.Linear{In: merged(c), Out: width, NoBias: true}),
		}),
		family.Listed,
	}
}

// shuffled joins the patches of each square of this side to one vector, in two copies (pixel_shuffle).
type shuffled int

func (l shuffled) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(images, patches, hidden)")
	n := int(l) * int(l)
	if l < 1 || x.Shape[1]%n != 0 {
		t.Failf("%d patches do not divide into squares of %d", x.Shape[1], n)
	}
	x = t.Copy(t.Copy(x))
	return t.View(x, alloc.Shape{x.Shape[0], x.Shape[1] / n, x.Shape[2] * n}...)
}

// idefics3Look is that of an image whose longer side becomes four tiles. Each row of tiles ends with a
// token, and each tile has two more than its vectors, the whole image three (processing_idefics3.py;
// image_processing_idefics3.py, get_number_of_image_patches). The tiles are as large as the encoder's
// images.
func idefics3Look(c family.Transformer) (family.Look, error) {
	const tiles, most = 4, 4096
	if c.Side() < 1 || c.Side()%c.Merge != 0 {
		return family.Look{}, family.Unfit("patches do not divide into squares")
	}
	each := c.Side() / c.Merge * (c.Side() / c.Merge)
	long, short := max(c.Prompt.Width, c.Prompt.Height), min(c.Prompt.Width, c.Prompt.Height)
	ratio, longest := float64(long)/float64(short), min(tiles*c.Image, most)
	side := int(float64(longest) / ratio)
	side = max(1, side+side%2)
	up := func(n int) int { return int(math.Ceil(float64(n) / float64(c.Image))) }
	rows, columns := up(side), up(longest)
	if c.Prompt.Height > c.Prompt.Width {
		rows, columns = columns, rows
	}
	if rows*columns == 1 {
		rows, columns = 0, 0
	}
	return family.Look{Tokens: each + 3 + rows*(columns*(each+2)+1), Sized: true, Inputs: family.Joined(rows*columns+1, c.Channels, c.Image, c.Image)}, nil
}

func readIdefics3(c *family.Config, a *family.Model, head, vision string) {
	imageText{head: head, usual: "llama", vision: vision, numbers: func(v, c *family.Config, t *family.Model) {
		towerNumbers(v, &t.Transformer)
		v.Activation(t, v.Word("hidden_act"), "gelu_pytorch_tanh")
		c.Number(&t.Merge, "scale_factor", 2)
	}}.read(c, a)
}
