package setting

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LayerSizes is the memory of a model's weights by what llama.cpp calls layers: each block is one,
// and the output is one more. A GPU holds some of them, and the memory of the CPU the rest.
type LayerSizes struct {
	Input  alloc.Bytes   // embeddings, which stay on the CPU
	Blocks []alloc.Bytes // in their order
	Output alloc.Bytes   // the last norm and the head
	Tied   alloc.Bytes   // the part of Output that is a copy of the embedding
}

// Layers returns the number of layers that a GPU can hold, which llama.cpp prints as "offloaded N/N
// layers to GPU".
func (s LayerSizes) Layers() int { return len(s.Blocks) + 1 }

// OnGPU returns how much of the weights a GPU holds with n layers on it (llama.cpp's
// --n-gpu-layers), and how much stays in the memory of the CPU. The output goes to the GPU first,
// then the blocks from the last to the first (llama.cpp, src/llama-model.cpp, load_tensors, since
// pull request 18148 of December 2025; before that the output came last). An n above Layers means
// all of them; one below 0 means none.
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

// first returns the number of the first block on the GPU.
func (s LayerSizes) first(n int) int { return min(len(s.Blocks), max(0, s.Layers()-n)) }

// GpuPart is the memory that one GPU holds, and of how many blocks.
type GpuPart struct {
	Weights alloc.Bytes
	Cache   Kept
	Blocks  int
}

// Split divides the first n layers among GPUs. Each GPU gets the layers whose number, divided by n,
// is below the sum of the proportions up to its own (llama.cpp, src/llama-model.cpp, load_tensors).
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

// checkShares returns an error if the proportions are negative, not numbers, or all 0.
func checkShares(proportions []float64) error {
	all := 0.0
	for _, p := range proportions {
		if !(p >= 0 && p <= MaxField) {
			return wrong("Split: a share of %v: want 0 or more", p)
		}
		all += p
	}
	if len(proportions) > 0 && all == 0 || len(proportions) > maxGPUs {
		return wrong("Split: shares %v: want one more than 0, and at most %d", proportions, maxGPUs)
	}
	return nil
}

// maxGPUs bounds the number of proportions of Split.
const maxGPUs = 1024

// Last returns the cache of the last blocks, where the model has as many blocks as of.
func (c KVConfig) Last(blocks, of int) Kept {
	part := func(n int) int { return int((int64(n)*int64(blocks) + int64(of) - 1) / int64(of)) }
	c.Layers, c.Full, c.Fixed = part(c.Layers), part(c.Full), part(c.Fixed)
	if blocks == 0 {
		return Kept{}
	}
	k, err := KVCache(c)
	if err != nil { // it is a part of all blocks, which are valid
		return Kept{}
	}
	return k
}
