package vision

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Mistral3 has Pixtral as its tower, and merges the patches of squares before the projector
// (modeling_mistral3.py).
var Mistral3 = &family.Family{
	Name:  "Mistral 3's tower",
	Tower: mistral3Tower,
	Look:  pixtralLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "mistral3", Base: "Mistral3Model", Read: readMistral3}},
}

// pixtralEncoder reads images of any size, all patches in one sequence (modeling_pixtral.py).
var pixtralEncoder = encoder{
	name: "pixtral",
	read: func(c *family.Config, t *family.Model) {
		towerNumbers(c, &t.Transformer)
		c.Activation(t, c.Word("hidden_act"), "gelu")
		c.Number(&t.EmbedDim, "head_dim", max(1, t.Hidden/t.Heads)) // of the rotary tables alone: heads divide the width
	},
	parts: func(c family.Transformer) tape.Sequential {
		norm := layer.RMSNorm{Size: c.Hidden, Unfused: true}
		return tape.Sequential{
			tape.As("patch_conv", c.PatchConv(true)),
			tape.As("ln_pre", norm),
			tape.As("transformer.layers", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
				tape.Skip(tape.As("attention_norm", norm), tape.As("attention", layer.Attention{
					Hidden: c.Hidden, Heads: c.Heads, NoBias: true, Rotary: true, Packs: true, Plain: c.Plain, Dropout: c.Dropout,
				})),
				tape.Skip(tape.As("ffn_norm", norm), tape.As("feed_forward", layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELU)})),
			}}),
			tape.As("patch_positional_embedding", family.Frequencies{N: c.EmbedDim / 2}),
		}
	},
	run: func(f *tape.Flow, c family.Transformer, x tape.Tensor) ([]tape.Tensor, tape.Tensor) {
		x = f.Call("patch_conv", x)
		x = f.Copy(f.View(x, 1, -1, c.Hidden)) // of the images' list
		states := throughBlocks(f, "transformer.layers", c.Blocks, f.Call("ln_pre", x))
		return states, states[len(states)-1]
	},
	look: pixtralLook,
}

// pixtralLook is that of an image whose longer side is at most that of the encoder's images. There is
// a token for each merged square of patches and one at the end of each row
// (image_processing_pixtral.py, get_resize_output_image_size; processing_pixtral.py).
func pixtralLook(c family.Transformer) (family.Look, error) {
	if c.EmbedDim != c.HeadWidth() {
		return family.Look{}, family.Unfit(fmt.Sprintf("heads of %d elements do not rotate by tables for %d", c.HeadWidth(), c.EmbedDim))
	}
	square := c.Patch * setting.Or(c.Merge, 1)
	width, height := c.Prompt.Width, c.Prompt.Height
	if ratio := float64(max(width, height)) / float64(c.Image); ratio > 1 {
		width, height = int(math.Floor(float64(width)/ratio)), int(math.Floor(float64(height)/ratio))
	}
	columns, rows := max(1, (width+square-1)/square), max(1, (height+square-1)/square)
	return family.Look{Tokens: rows * (columns + 1), Sized: true, Inputs: family.Joined(1, c.Channels, rows*square, columns*square)}, nil
}

func mistral3Tower(c family.Transformer, width int) []tape.Layer {
	own := pickedOf(c)
	return []tape.Layer{
		tape.As("vision_tower", own.encoder.tower(c, own.states, false)),
		tape.As("multi_modal_projector", append(tape.Sequential{
			tape.As("norm", layer.RMSNorm{Size: c.Hidden, Unfused: true}),
			tape.As("patch_merger", tape.Sequential{
				tape.Inline(unfolded(merged(c))),
				tape.As("merging_layer", layer.Linear{In: merged(c), Out: c.Hidden, NoBias: true}),
			}),
		}, own.projector(c, width)...)),
		family.Listed,
	}
}

// unfolded puts the patches of each square into one vector of this width, with
// torch.nn.functional.unfold for each image, and joins the images' vectors.
type unfolded int

func (l unfolded) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	n, err := x.Shape.Elements()
	if err != nil || l < 1 || n%int64(l) != 0 {
		t.Failf("the patches %v do not divide into squares of %d elements", x.Shape, int(l))
	}
	vectors := int(n / int64(l))
	x = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: []int{int(l), vectors}, Workspace: t.Size(x)})
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: []int{vectors, int(l)}})
}

func readMistral3(c *family.Config, a *family.Model) {
	imageText{head: "Mistral3ForConditionalGeneration", usual: "mistral", numbers: func(_, c *family.Config, t *family.Model) {
		t.Own = readPicked(c, t, "pixtral", -1)
		t.Bias = c.Flag("multimodal_projector_bias", false)
		c.Number(&t.Merge, "spatial_merge_size", 2)
	}}.read(c, a)
}
