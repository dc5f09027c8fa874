package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
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
		tape.As("vision_tower", own.encoder.tower(c, own.states, !own.whole)),
		tape.As("multi_modal_projector", own.projector(c, width)),
		family.Listed,
	}
}

// projector returns the two layers that project what the encoder makes of patches.
func (p picked) projector(c family.Transformer, width int) tape.Sequential {
	return tape.Sequential{
		tape.As("linear_1", layer.Linear{In: setting.Product(c.Hidden, len(p.states)), Out: width, NoBias: !c.Bias}),
		tape.As("act", p.act.Layer(layer.UseGELU)),
		tape.As("linear_2", layer.Linear{In: width, Out: width, NoBias: !c.Bias}),
	}
}

// wholeImage is the look of an image that is scaled to one size, if the encoder takes no other. A
// token stands for each of its vectors that the text reads.
func wholeImage(c family.Transformer) (family.Look, error) {
	own := pickedOf(c)
	if own.encoder.look != nil {
		return own.encoder.look(c)
	}
	return family.Look{Tokens: own.vectors(c), Inputs: family.Joined(1, c.Channels, c.Image, c.Image)}, nil
}

// vectors returns how many vectors the text reads of an image of the encoder's size. Where the class
// token is left out, that is the first patch in an encoder that has none.
func (p picked) vectors(c family.Transformer) int {
	n := c.Side() * c.Side()
	if p.encoder.class {
		n++
	}
	if !p.whole {
		n--
	}
	return n
}

func readLLaVA(c *family.Config, a *family.Model) {
	imageText{head: "LlavaForConditionalGeneration", usual: "llama", numbers: func(_, c *family.Config, t *family.Model) {
		t.Own = readPicked(c, t, "clip_vision_model", -2)
	}}.read(c, a)
}

// readPicked reads the image encoder, what of it the text reads, and the projector. usual is the type
// of encoder where the file does not say it, and layer the layer whose output the text reads.
func readPicked(c *family.Config, t *family.Model, usual string, layer int) *picked {
	own := picked{encoder: readEncoder(c, t, usual)}
	t.Bias = c.Flag("multimodal_projector_bias", true)
	own.states = layerNumbers(c, "vision_feature_layer", t.Blocks, layer)
	own.whole = c.Word("vision_feature_select_strategy") == "full"
	projector := family.Model{}
	c.Activation(&projector, c.Word("projector_hidden_act"), "gelu")
	own.act = projector.Activation
	return &own
}
