package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// CLIPText is CLIP's tower of texts alone, as Stable Diffusion and FLUX have it.
var CLIPText = &family.Family{
	Name:   "CLIP's texts",
	Layers: clipTextAlone,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "clip_text_model", Base: "CLIPTextModel", Read: readCLIPText}},
}

// clipText returns the tower of texts, up to its last norm.
func clipText(c family.Transformer) tape.Sequential {
	return tape.Sequential{
		tape.As("embeddings", tape.Sequential{
			tape.As("token_embedding", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
			tape.As("position_embedding", family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true}),
		}),
		tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseQuickGELU, false)}),
		tape.As("final_layer_norm", layer.LayerNorm{Size: c.Hidden}),
	}
}

// clipTextAlone returns the tower and, if Classes is set, its projection.
func clipTextAlone(c family.Transformer) []tape.Layer {
	text := tape.As("text_model", append(clipText(c), tape.Inline(lastToken{})))
	if c.Classes == 0 {
		return []tape.Layer{text}
	}
	return []tape.Layer{text, tape.As("text_projection", layer.Linear{In: c.Hidden, Out: c.Classes, NoBias: true})}
}

func readCLIPText(c *family.Config, a *family.Model) {
	const projected = "CLIPTextModelWithProjection"
	class := c.Class(projected)
	c = c.Itself("clip_text_model") // older files leave out sizes that are usual
	clipTextSettings(c, a)
	if class == projected {
		c.Number(&a.Classes, "projection_dim", 512)
	}
}

// clipTextSettings reads the numbers of the tower of texts.
func clipTextSettings(c *family.Config, a *family.Model) {
	c.Sizes(&a.Transformer)
	c.Number(&a.Vocab, "vocab_size", 49408)
	c.Number(&a.Positions, "max_position_embeddings", 77)
	c.Activation(a, c.Word("hidden_act"), "quick_gelu")
}
