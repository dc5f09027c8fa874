package checkpoint

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// blockType is how a file stores the elements of a tensor: in blocks, each of
// blockElements elements in blockBytes bytes. For most types a block is one
// element; a quantized type packs some hundred of them with their scales.
type blockType struct {
	name string // the file format's own
	// dtype is the element type; zero for the types that only exist in blocks
	// (GGUF's quantized ones) or that package alloc does not have (F8_E8M0).
	dtype alloc.DType
	// blockElements and blockBytes are both at least 1.
	blockElements, blockBytes int
}

func (e blockType) String() string { return e.name }

// size returns the storage of a number of elements. It is an error if they do not
// fill whole blocks or the size does not fit.
func (e blockType) size(elements int64) (alloc.Bytes, error) {
	if elements%int64(e.blockElements) != 0 {
		return 0, fmt.Errorf("%d elements do not fill whole blocks of %d, as %s has them", elements, e.blockElements, e.name)
	}
	blocks := elements / int64(e.blockElements)
	if blocks > math.MaxInt64/int64(e.blockBytes) {
		return 0, fmt.Errorf("the size of %d elements of %s overflows 64 bits", elements, e.name)
	}
	return alloc.Bytes(blocks * int64(e.blockBytes)), nil
}

// tensorInfo is one tensor of a model file, as the file's header describes it.
type tensorInfo struct {
	Name     string
	Encoding string      // the file format's own name of the element type, such as "BF16" or "Q4_K"
	Shape    alloc.Shape // the outermost dimension first, also where the format has it last
	Elements int64
	Bytes    alloc.Bytes
	File     string // its name, without the folder
	Offset   int64  // of the data, in bytes from the file's start
	encoding blockType
}

// isBuffer reports whether the tensor is state that is stored with a model and is
// no parameter. Files do not say so: it goes by the names under which PyTorch's
// batch norm and the models of Hugging Face's transformers register their buffers.
func (t tensorInfo) isBuffer() bool {
	module, name := "", t.Name
	if dot := strings.LastIndexByte(t.Name, '.'); dot >= 0 {
		module, name = t.Name[:dot], t.Name[dot+1:]
	}
	switch name {
	case "running_mean", "running_var", "num_batches_tracked", "position_ids", "masked_bias":
		return true
	case "inv_freq":
		return strings.HasSuffix(module, "rotary_emb")
	case "bias": // GPT-2's causal mask (1, 1, context, context)
		return strings.HasSuffix(module, "attn") && len(t.Shape) == 4
	}
	return false
}

// maxDims limits a tensor's dimensions; PyTorch and NumPy have the same limit.
const maxDims = 64

// measure fills in the tensor's elements and bytes from its shape and encoding.
func (t *tensorInfo) measure() error {
	t.Encoding = t.encoding.name
	var err error
	if t.Elements, err = t.Shape.Elements(); err != nil {
		return err
	}
	t.Bytes, err = t.encoding.size(t.Elements)
	return err
}
