package checkpoint

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// architecture is what a config.json or GGUF metadata say of a transformer.
type architecture struct {
	family string // as model_type or general.architecture has it
	family.Transformer
	image     imageModel    // in place of the Transformer; nil for none
	latent    int           // side of the latent image that FLUX makes; 0 for the usual one
	cache     bool          // the Transformer is of an unknown family and tells its cache alone
	dtype     alloc.DType   // of the weights, where a config.json tells it
	quantized *quantization // of the weights, where a config.json tells it
}

// Layers are the model's.
func (a *architecture) Layers() []tape.Layer {
	if a.image != nil {
		return a.image.Layers()
	}
	return a.Transformer.Layers()
}

// maxBlocks bounds the blocks and the experts that a file can ask for: the largest
// models have some hundred.
const maxBlocks = 1024

// check holds the numbers against each other.
func (a *architecture) check() error {
	switch {
	case a.image != nil:
	case a.Heads%max(1, a.KVHeads) != 0:
		return fmt.Errorf("%d heads cannot share %d heads of keys and values", a.Heads, a.KVHeads)
	case a.HeadSize == 0 && a.Hidden%a.Heads != 0:
		return fmt.Errorf("a hidden size of %d does not divide into %d heads", a.Hidden, a.Heads)
	case a.RotaryDim > headSize(a.Transformer):
		return fmt.Errorf("%d elements of a head rotate, of %d", a.RotaryDim, headSize(a.Transformer))
	case a.TopK > a.Experts:
		return fmt.Errorf("each token visits %d experts, of %d", a.TopK, a.Experts)
	case a.Window < 0:
		return fmt.Errorf("a sliding window of %d", a.Window)
	case (a.Family == family.ViT || a.Family == family.DeiT) && a.Image%a.Patch != 0:
		return fmt.Errorf("an image of %d does not divide into patches of %d", a.Image, a.Patch)
	case a.Blocks > maxBlocks:
		return fmt.Errorf("%d blocks, more than %d", a.Blocks, maxBlocks)
	case a.Experts > maxBlocks:
		return fmt.Errorf("%d experts, more than %d", a.Experts, maxBlocks)
	}
	return nil
}

// borrow marks so many of the last layers, which use the keys and values of others.
func (a *architecture) borrow(layers int) error {
	if layers < 0 || layers >= max(1, a.Blocks) {
		return fmt.Errorf("%d of %d layers use the keys and values of others", layers, a.Blocks)
	}
	if layers == 0 {
		return nil
	}
	kinds := a.kinds()
	for i := max(0, a.Blocks-layers); i < len(kinds); i++ {
		kinds[i] |= family.Borrowing
	}
	return nil
}

// headSize is the number of elements of a head.
func headSize(t family.Transformer) int { return cmp.Or(t.HeadSize, t.Hidden/t.Heads) }

// largestNumber bounds every number of an architecture.
const largestNumber = math.MaxInt32

// positions is the number of learned positions that a text can have, 0 for any number.
func (a *architecture) positions() int {
	if a.Family == family.RoBERTa || a.Family == family.MPNet {
		return a.Positions - 2 // of padding
	}
	return a.Positions
}

// seesImages reports whether the model reads images and no text.
func (a *architecture) seesImages() bool {
	switch a.Family {
	case family.ViT, family.DeiT, family.DINOv2, family.Swin:
		return true
	}
	return false
}
