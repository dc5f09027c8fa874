package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// architecture is what a config.json or GGUF metadata say of a transformer.
type architecture struct {
	family string // as model_type or general.architecture has it
	Transformer
	tail  []Layer     // a head that the Transformer's family does not have itself
	dtype alloc.DType // of the weights, where a config.json tells it
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
func (a *architecture) layers() []Layer { return append(a.Layers(), a.tail...) }

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
