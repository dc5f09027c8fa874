package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LLaVA has an image encoder and two layers that project its patches to the text's width
// (arXiv:2304.08485; transformers' modeling_llava.py).
var LLaVA = &family.Family{
	Name:  "LLaVA's tower",
	Tower: llavaTower,
	Look:  wholeImage,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "llava", Base: "LlavaModel", Read: readLLaVA}},
}

// picked says what LLaVA and its successors take of their image encoder.
type picked struct {
	encoder encoder
	states  []int // layers whose output the text reads; negative ones count from the last
	whole   bool  // with the class token
	act     layer.Activation
}

func pickedOf(c family.Transformer) picked {
	if own := family.Own[picked](c); own != nil {
		return *own
	}
	return picked{encoder: clipEncoder, states: []int{-2}, act: layer.UseGELU}
}

func llavaTower(c family.Transformer, width int) []tape.Layer {
	own := pickedOf(c)
	return []tape.Layer{
		tape.As("vision_tower", own.encoder.tower(c, own.states, own.encoder.class && !own.whole)),
		tape.As("multi_modal_projector", tape.Sequential{
			tape.As("linear_1", layer.Linear{In: c.Hidden * len(own.states), Out: width, NoBias: !c.Bias}),
			tape.As("act", own.act.Layer(layer.UseGELU)),
			tape.As("linear_2", layer.Linear{In: width, Out: width, NoBias: !c.Bias}),
		}),
	}
}

// wholeImage is the look of an image that is scaled to one size. A token stands for each patch, and
// one for the class if the text reads it.
func wholeImage(c family.Transformer) (family.Look, error) {
	own, tokens := pickedOf(c), c.Side()*c.Side()
	if own.encoder.class && own.whole {
		tokens++
	}
	return family.Look{Tokens: tokens, Shape: []int{1, c.Channels, c.Image, c.Image}}, nil
}

func readLLaVA(c *family.Config, a *family.Model) {
	imageText{head: "LlavaForConditionalGeneration", usual: "llama", numbers: func(_, c *family.Config, t *family.Model) {
		t.Bias = c.Flag("multimodal_projector_bias", true)
		t.Own = readPicked(c, t, "clip_vision_model")
	}}.read(c, a)
}

// readPicked reads the image encoder, and what of it the text reads. usual is the type of encoder
// where the file does not say it.
func readPicked(c *family.Config, t *family.Model, usual string) *picked {
	own := picked{encoder: readEncoder(c, t, usual)}
	own.states = layerNumbers(c, "vision_feature_layer", t.Blocks, -2)
	own.whole = c.Word("vision_feature_select_strategy") == "full"
	projector := family.Model{}
	c.Activation(&projector, c.Word("projector_hidden_act"), "gelu")
	own.act = projector.Activation
	return &own
}
