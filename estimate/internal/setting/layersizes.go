package setting

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LayerSizes is the memory of a model's weights by what llama.cpp calls layers: the blocks and,
// as one more, the output. A GPU holds some of them, and the memory of the CPU the rest.
type LayerSizes struct {
	Input  alloc.Bytes   // embeddings, which stay on the CPU
	Blocks []alloc.Bytes // in their order
	Output alloc.Bytes   // the last norm and the head
	Tied   alloc.Bytes   // of the Output, what is a copy of the embedding
}

// Layers is the number of layers that a GPU can hold, which llama.cpp prints as "offloaded N/N layers to GPU".
func (s LayerSizes) Layers() int { return len(s.Blocks) + 1 }

// OnGPU returns what a GPU holds of the weights with n layers on it (llama.cpp's --n-gpu-layers), and
// what stays in the memory of the CPU. The output comes first, then the blocks from the last
// to the first (llama.cpp, src/llama-model.cpp, load_tensors, since pull request 18148 of
// December 2025; before it the output came last). More than Layers is all of them; less than 0 is 0.
func (s LayerSizes) OnGPU(n int) (gpu, cpu alloc.Bytes) {
	first := s.first(n)
	cpu = s.Input
	for _, size := range s.Blocks[:first] {
		cpu += size
	}
	for _, size := range s.Blocks[first:] {
		gpu += size
	}
	if n < 1 {
		return gpu, cpu + s.Output - s.Tied
	}
	return gpu + s.Output, cpu
}

// first is the first block on the GPU.
func (s LayerSizes) first(n int) int { return min(len(s.Blocks), max(0, s.Layers()-n)) }

// GpuPart is what one GPU holds.
type GpuPart struct {
	Weights, Cache alloc.Bytes
	Blocks         int
}

// Split divides n layers: each GPU gets those whose number, as a fraction of n, is below the sum of
// the proportions up to its own (llama.cpp, src/llama-model.cpp, load_tensors).
func (s LayerSizes) Split(n int, proportions []float64) []GpuPart {
	if len(proportions) == 0 {
		proportions = []float64{1}
	}
	all := 0.0
	for _, p := range proportions {
		all += p
	}
	parts := make([]GpuPart, len(proportions))
	gpu, below := 0, proportions[0]/all
	for i := range n {
		for gpu < len(parts)-1 && float64(i)/float64(n) >= below {
			gpu++
			below += proportions[gpu] / all
		}
		if block := s.Layers() - n + i; block < len(s.Blocks) {
			parts[gpu].Blocks++
			parts[gpu].Weights += s.Blocks[block]
		} else {
			parts[gpu].Weights += s.Output
		}
	}
	return parts
}

// checkShares reports proportions that are none.
func checkShares(proportions []float64) error {
	all := 0.0
	for _, p := range proportions {
		if !(p >= 0 && p <= MaxField) {
			return wrong("SplitOver: a share of %v: want 0 or more", p)
		}
		all += p
	}
	if len(proportions) > 0 && all == 0 || len(proportions) > maxGPUs {
		return wrong("SplitOver: shares %v: want one more than 0, and at most %d", proportions, maxGPUs)
	}
	return nil
}

// maxGPUs bounds SplitOver.
const maxGPUs = 1024

// Last is the memory of the last blocks' keys and values.
func (c KVConfig) Last(blocks, of int) alloc.Bytes {
	part := func(n int) int { return int((int64(n)*int64(blocks) + int64(of) - 1) / int64(of)) }
	c.Layers, c.Full, c.Fixed = part(c.Layers), part(c.Full), part(c.Fixed)
	if blocks == 0 {
		return 0
	}
	n, err := KVCache(c)
	if err != nil { // there is less than of all blocks, which are valid
		return 0
	}
	return n
}
