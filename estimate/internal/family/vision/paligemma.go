package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// PaliGemma has a SigLIP and one layer that projects its patches for a Gemma (arXiv:2407.07726;
// modeling_paligemma.py).
var PaliGemma = &family.Family{
	Name:   "PaliGemma's tower",
	Tower:  paliGemmaTower,
	Look:   wholeImage,
	Masked: true,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "paligemma", Base: "PaliGemmaModel", Read: readPaliGemma}},
}

func paliGemmaTower(c family.Transformer, width int) []tape.Layer {
	return []tape.Layer{
		tape.As("vision_tower", pickedOf(c).encoder.tower(c, nil, false)),
		tape.As("multi_modal_projector", tape.Sequential{tape.As("linear", layer.Linear{In: c.Hidden, Out: c.Classes})}),
	}
}

func readPaliGemma(c *family.Config, a *family.Model) {
	imageText{head: "PaliGemmaForConditionalGeneration", usual: "gemma", numbers: func(_, c *family.Config, t *family.Model) {
		t.Own = &picked{encoder: readEncoder(c, t, "siglip_vision_model"), whole: true}
		c.Number(&t.Classes, "projection_dim", 2048)
	}}.read(c, a)
}
