package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// architecture is what a config.json or GGUF metadata say of a transformer.
type architecture struct {
	family string // as model_type or general.architecture has it
	Transformer
	beside []Layer     // parts that are held and do not run on the Input
	tail   []Layer     // a head that the Transformer's family does not have itself
	dtype  alloc.DType // of the weights, where a config.json tells it

	quantized string // how the weights are, where a config.json tells it
}

// maxBlocks bounds the blocks and the experts that a file can ask for: the largest
// models have some hundred.
const maxBlocks = 1024

// check holds the numbers against each other.
func (a *architecture) check() error {
	switch {
	case a.Heads%max(1, a.KVHeads) != 0:
		return fmt.Errorf("%d heads cannot share %d heads of keys and values", a.Heads, a.KVHeads)
	case a.HeadSize == 0 && a.Hidden%a.Heads != 0:
		return fmt.Errorf("a hidden size of %d does not divide into %d heads", a.Hidden, a.Heads)
	case a.RotaryDim > a.headSize():
		return fmt.Errorf("%d elements of a head rotate, of %d", a.RotaryDim, a.headSize())
	case a.TopK > a.Experts:
		return fmt.Errorf("each token visits %d experts, of %d", a.TopK, a.Experts)
	case a.Window < 0:
		return fmt.Errorf("a sliding window of %d", a.Window)
	case a.Family == ViT && a.Image%a.Patch != 0:
		return fmt.Errorf("an image of %d does not divide into patches of %d", a.Image, a.Patch)
	case a.Blocks > maxBlocks:
		return fmt.Errorf("%d blocks, more than %d", a.Blocks, maxBlocks)
	case a.Experts > maxBlocks:
		return fmt.Errorf("%d experts, more than %d", a.Experts, maxBlocks)
	}
	return nil
}

// layers builds the model.
func (a *architecture) layers() []Layer { return slices.Concat(a.beside, a.Layers(), a.tail) }

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

// siglip is the vision tower of Gemma 3, and what fits its patches to the text's width.
func siglip(t Transformer, width int) []Layer {
	side := t.Image / t.Patch
	return []Layer{
		Named{"vision_tower", held{Sequential{
			Named{"patch_embedding", Conv2d{In: t.Channels, Out: t.Hidden, Kernel: t.Patch, Stride: t.Patch}},
			Named{"position_embedding", Embedding{Num: min(side, maxField) * min(side, maxField), Dim: t.Hidden}},
			Named{"layers", Repeat{N: t.Blocks, Layer: t.vitBlock()}},
			Named{"post_layernorm", LayerNorm{Size: t.Hidden}},
		}}},
		Named{"multi_modal_projector", held{Sequential{
			Parameter{Name: "mm_input_projection_weight", Shape: alloc.Shape{t.Hidden, width}},
			Named{"mm_soft_emb_norm", RMSNorm{Size: t.Hidden}},
		}}},
	}
}

// maskedLM is the head of BertForMaskedLM.
func maskedLM(t Transformer) []Layer {
	decoder := Linear{In: t.Hidden, Out: t.Vocab, Split: ByColumns}
	if t.Tied {
		decoder.Tied = "embeddings.word_embeddings.weight"
	}
	return []Layer{Named{"cls", Sequential{
		Named{"transform", Sequential{
			Named{"dense", Linear{In: t.Hidden, Out: t.Hidden}},
			Named{"transform_act_fn", t.Activation.layer(UseGELU)},
			Named{"LayerNorm", LayerNorm{Size: t.Hidden}},
		}},
		Named{"decoder", decoder},
	}}}
}

// vitPooler is what ViTModel makes of the class token.
func vitPooler(t Transformer) []Layer {
	return []Layer{Named{"pooler", Sequential{
		first{},
		Named{"dense", Linear{In: t.Hidden, Out: t.Hidden}},
		Named{"activation", Tanh{}},
	}}}
}
