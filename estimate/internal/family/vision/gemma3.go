package vision

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma3Vision is the tower of Gemma 3: a SigLIP, whose patches are averaged in squares
// (modeling_gemma3.py).
var Gemma3Vision = &family.Family{
	Name:    "Gemma 3's tower",
	Tower:   gemma3Tower,
	Look:    gemma3Look,
	Masked:  true,
	Role:    family.Encoder,
	Patched: true,
	Types:   []family.Type{{Name: "gemma3", Base: "Gemma3Model", Read: readGemma3Vision}},
}

func gemma3Tower(c family.Transformer, width int) []tape.Layer {
	c.Image, c.Patch, c.Channels = setting.Or(c.Image, 224), setting.Or(c.Patch, 16), setting.Or(c.Channels, 3)
	return []tape.Layer{
		tape.As("vision_tower", siglipEncoder.tower(c, nil, false)),
		tape.As("multi_modal_projector", tape.Module{Name: "Projector", Parts: tape.Sequential{
			tape.As("mm_soft_emb_norm", layer.RMSNorm{Size: c.Hidden, Unfused: true, Shifted: true}),
		}, Params: []tape.Param{{Name: "mm_input_projection_weight", Shape: alloc.Shape{c.Hidden, width}}}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			f.Rank(x, 3, "(images, patches, hidden)")
			images, side := x.Shape[0], tokensPerSide(c)
			x = f.Copy(f.View(f.Permute(x, 0, 2, 1), images, c.Hidden, c.Side(), c.Side()))
			shape := alloc.Shape{images, c.Hidden, side, side}
			x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, Keep: []tape.Tensor{x}}) // AvgPool2d
			x = f.Call("mm_soft_emb_norm", f.View(x, images, side*side, c.Hidden))
			if images > 1 { // norms keep the order of the dimensions in memory
				x = f.Copy(x)
			}
			reads := []tape.Tensor{x}
			return f.Op(tape.Op{In: reads, Shape: alloc.Shape{images, side * side, width}, Params: true, Keep: f.ForWeights(reads), FLOPs: setting.FLOPs(images, side*side, c.Hidden, width, 2)})
		}}),
	}
}

// tokensPerSide returns the number of squares along an image's side, whose patches are averaged.
func tokensPerSide(c family.Transformer) int {
	return max(1, int(math.Sqrt(float64(setting.Or(c.Classes, 256)))))
}

// gemma3Look is that of an image that is scaled to one size. Tokens stand for squares of patches.
func gemma3Look(c family.Transformer) (family.Look, error) {
	side := tokensPerSide(c)
	if kernel := c.Side() / side; kernel < 1 || (c.Side()-kernel)/kernel+1 != side {
		return family.Look{}, family.Unfit(fmt.Sprintf("mm_tokens_per_image is %d, but the %d patches along an image's side do not divide into %d squares", side*side, c.Side(), side))
	}
	return family.Look{Tokens: side * side, Inputs: family.Joined(1, c.Channels, c.Image, c.Image)}, nil
}

func readGemma3Vision(c *family.Config, a *family.Model) {
	class := c.Class("Gemma3ForConditionalGeneration")
	if !c.Given("text_config") || !c.Given("vision_config") {
		c.Fail("text_config, vision_config", "the key is missing")
	}
	text := c.Component("text_config", "gemma3_text")
	// The defaults of transformers for a missing key in text_config.
	text.Usual("num_attention_heads", 8)
	text.Usual("vocab_size", 262_208)
	text.Inherit("tie_word_embeddings", c)
	tower := family.Model{Transformer: family.Transformer{Family: c.Family}}
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	siglipEncoder.read(c.Component("vision_config", "siglip_vision_model"), &tower)
	c.Number(&tower.Classes, "mm_tokens_per_image", 256)
	setTower(c, a, &tower)
}
