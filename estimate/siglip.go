package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// siglip is t as the vision tower of Gemma 3, and what fits its patches to the text's width.
func (t Transformer) siglip(width int) []Layer {
	t.Image, t.Patch, t.Channels = or(t.Image, 224), or(t.Patch, 16), or(t.Channels, 3)
	side := t.Image / max(1, t.Patch)
	return []Layer{
		Named{"vision_tower", held{Sequential{
			Named{"patch_embedding", Conv2d{In: t.Channels, Out: t.Hidden, Kernel: t.Patch, Stride: t.Patch}},
			Named{"position_embedding", Embedding{Num: min(side, maxField) * min(side, maxField), Dim: t.Hidden}},
			Named{"layers", Repeat{N: t.Blocks, Layer: t.vitBlock()}},
			Named{"post_layernorm", LayerNorm{Size: t.Hidden}},
		}}},
		Named{"multi_modal_projector", held{Sequential{
			Learned{Name: "mm_input_projection_weight", Shape: alloc.Shape{t.Hidden, width}},
			Named{"mm_soft_emb_norm", RMSNorm{Size: t.Hidden}},
		}}},
	}
}

// held is a layer whose parameters are there and that passes its input on.
type held struct{ Layer }

// Kind names the row.
func (held) Kind() string { return "Held" }

// Forward implements Layer: the row stands for all parts.
func (held) Forward(t *Tape, x Tensor) (Tensor, error) {
	row := &t.rows[t.row]
	for i := row.owner + 1; row.owner >= 0 && i < len(t.decl.modules) && t.decl.modules[i].depth > row.Depth; i++ {
		row.Params = addSat(row.Params, t.decl.modules[i].params)
	}
	t.held = true
	return x, nil
}
