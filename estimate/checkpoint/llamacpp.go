package checkpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Served returns the option with which llama.cpp serves the model, with keys and values as Cache describes them. GGUF
// weights count as stored; other weights that are not quantized count as float16, as after a conversion. The errors are
// those of Layers; it is also an error if a GGUF file has no tensor of some block, or if settings make no sense.
func (c *File) Served(cache estimate.KVConfig, by llamacpp.Server) (estimate.Option, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	sizes, err := c.layerSizes()
	if err != nil {
		return nil, err
	}
	serve, err := c.architecture.Transformer.Serve(family.Server(by), setting.KVConfig(cache), sizes)
	if err != nil {
		return nil, err
	}
	return setting.Func(serve), nil
}

// layerSizes returns the memory of the weights in each of llama.cpp's layers.
func (c *File) layerSizes() (setting.LayerSizes, error) {
	if c.Format == "GGUF" {
		return c.ggufSizes()
	}
	layers, err := c.Layers()
	if err != nil {
		return setting.LayerSizes{}, err
	}
	stored, err := llamacpp.Quantization("F16").Stored(layers)
	if err != nil {
		return setting.LayerSizes{}, err
	}
	var of setting.Config
	stored.Apply(&of)
	if held, ok := c.quantizedBytes(); ok {
		shrink(of.Sizes, held)
	}
	return *of.Sizes, nil
}

// quantizedBytes returns the memory of the weights if a config.json says that they are quantized.
func (c *File) quantizedBytes() (alloc.Bytes, bool) {
	if c.architecture.quantized != nil && len(c.tensors) > 0 {
		return c.weights().Bytes, true
	}
	packed, ok := c.packed()
	return packed.Bytes, ok
}

// shrink lets the blocks take what of all bytes the rest leaves: heads and embeddings are not quantized.
func shrink(s *setting.LayerSizes, all alloc.Bytes) {
	whole := alloc.Bytes(0)
	for _, size := range s.Blocks {
		whole += size
	}
	left := max(0, all-s.Input-s.Output+s.Tied)
	for i, size := range s.Blocks {
		s.Blocks[i] = alloc.Bytes(float64(left) * float64(size) / float64(max(1, whole)))
	}
}

// ggufInputs begin the names of tensors that llama.cpp counts to the input layer (src/llama-arch.cpp, LLM_TENSOR_INFOS).
var ggufInputs = []string{"token_embd", "token_types", "position_embd", "per_layer_token_embd"}

func (c *File) ggufSizes() (setting.LayerSizes, error) {
	var s setting.LayerSizes
	head := false
	for _, t := range c.tensors {
		n, inBlock := ggufBlock(t.Name)
		switch {
		case inBlock:
			if n >= len(s.Blocks) {
				s.Blocks = append(s.Blocks, make([]alloc.Bytes, n+1-len(s.Blocks))...)
			}
			s.Blocks[n] += t.Bytes
		case slices.ContainsFunc(ggufInputs, func(name string) bool { return strings.HasPrefix(t.Name, name) }):
			s.Input += t.Bytes
			if t.Name == "token_embd.weight" {
				s.Tied = t.Bytes
			}
		default:
			s.Output += t.Bytes
			head = head || t.Name == "output.weight"
		}
	}
	if len(s.Blocks) == 0 {
		return s, fmt.Errorf("checkpoint: %s has no tensors of blocks, blk.0 and so on: it is no model that llama.cpp places by layers", c.Name)
	}
	if head {
		s.Tied = 0
	}
	s.Output += s.Tied
	return s, nil
}

// ggufBlock is the number of the block that a tensor is in.
func ggufBlock(name string) (n int, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	number, _, dot := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	return n, ok && dot && err == nil && n >= 0 && n < family.MaxBlocks
}

// Projector returns the size of the weights that turn images or sound into tokens: the file that
// llama.cpp takes as --mmproj. For any other file it returns an error.
func (c *File) Projector() (alloc.Bytes, error) {
	if c.Format != "GGUF" || c.architecture.Type != projectorFamily {
		return 0, fmt.Errorf("checkpoint: %s is no projector: give a GGUF file whose general.architecture is %s, such as mmproj-model-f16.gguf", c.Name, projectorFamily)
	}
	return c.bytes(), nil
}

// projectorFamily is the architecture that projectors have.
const projectorFamily = "clip"
