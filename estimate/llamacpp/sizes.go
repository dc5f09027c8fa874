package llamacpp

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Sizes is the memory of a model's weights by what llama.cpp calls layers: the blocks and,
// as one more, the output. A GPU holds some of them, and the memory of the CPU the rest.
type Sizes struct {
	Input  alloc.Bytes   // embeddings, which stay on the CPU
	Blocks []alloc.Bytes // in their order
	Output alloc.Bytes   // the last norm and the head
	Tied   alloc.Bytes   // of the Output, what is a copy of the embedding
}

// add counts bytes of a block.
func (s *Sizes) add(block int, n alloc.Bytes) {
	if block >= len(s.Blocks) {
		s.Blocks = append(s.Blocks, make([]alloc.Bytes, block+1-len(s.Blocks))...)
	}
	s.Blocks[block] += n
}

// tie makes a copy of the embedding the head.
func (s *Sizes) tie(embedding alloc.Bytes) {
	s.Tied = embedding
	s.Output += embedding
}

// Layers is the number of layers that a GPU can hold, which llama.cpp prints as "offloaded N/N layers to GPU".
func (s Sizes) Layers() int { return setting.LayerSizes(s).Layers() }

// OnGPU returns what a GPU holds of the weights with n layers on it (llama.cpp's --n-gpu-layers), and
// what stays in the memory of the CPU. The output comes first, then the blocks from the last
// to the first (llama.cpp, src/llama-model.cpp, load_tensors, since pull request 18148 of
// December 2025; before it the output came last). More than Layers is all of them; less than 0 is 0.
func (s Sizes) OnGPU(n int) (gpu, cpu alloc.Bytes) { return setting.LayerSizes(s).OnGPU(n) }

// Converted returns the sizes of layers as llama.cpp's converter writes them: matrices in float16 and
// vectors in float32. The error is that of Model for layers that are not valid.
func Converted(layers []nn.Layer) (Sizes, error) {
	return mixtures[len(mixtures)-1].Layers(layers)
}
