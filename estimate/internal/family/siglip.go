package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// siglip is t as the vision tower of Gemma 3, and what fits its patches to the text's width.
func (t Transformer) siglip(width int) []tape.Layer {
	t.Image, t.Patch, t.Channels = setting.Or(t.Image, 224), setting.Or(t.Patch, 16), setting.Or(t.Channels, 3)
	side := t.Image / max(1, t.Patch)
	return []tape.Layer{
		tape.Named{Name: "vision_tower", Layer: held{tape.Sequential{
			tape.Named{Name: "patch_embedding", Layer: layer.Conv2d{In: t.Channels, Out: t.Hidden, Kernel: t.Patch, Stride: t.Patch}},
			tape.Named{Name: "position_embedding", Layer: layer.Embedding{Num: min(side, setting.MaxField) * min(side, setting.MaxField), Dim: t.Hidden}},
			tape.Named{Name: "layers", Layer: tape.Repeat{N: t.Blocks, Layer: t.vitBlock()}},
			tape.Named{Name: "post_layernorm", Layer: layer.LayerNorm{Size: t.Hidden}},
		}}},
		tape.Named{Name: "multi_modal_projector", Layer: held{tape.Sequential{
			layer.Learned{Name: "mm_input_projection_weight", Shape: alloc.Shape{t.Hidden, width}},
			tape.Named{Name: "mm_soft_emb_norm", Layer: layer.RMSNorm{Size: t.Hidden}},
		}}},
	}
}

// held is a layer whose parameters are there and that passes its input on.
type held struct{ tape.Layer }

// Kind names the row.
func (held) Kind() string { return "Held" }

// Declare names what the layer has.
func (h held) Declare(d *tape.Declaration) { d.Declare(h.Layer) }

// Forward passes x on: the row stands for all parts.
func (held) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	row := &t.Rows[t.Row]
	for i := row.Owner + 1; row.Owner >= 0 && i < len(t.Decl.Modules) && t.Decl.Modules[i].Depth > row.Depth; i++ {
		row.Params = setting.AddSat(row.Params, t.Decl.Modules[i].Params)
	}
	layer.Ran.Of(t).Held = true
	return x, nil
}
