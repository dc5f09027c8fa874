package estimate_test

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// classifier is the model that the budget below is about.
func classifier() []estimate.Layer {
	return []estimate.Layer{
		estimate.Conv2d{In: 3, Out: 32, Kernel: 3, Padding: 1},
		estimate.BatchNorm{Features: 32},
		estimate.ReLU{InPlace: true},
		estimate.MaxPool{Kernel: 2},
		estimate.Flatten{},
		estimate.Linear{In: 32 * 112 * 112, Out: 10},
	}
}

// A memory budget is a unit test: with t.Errorf for fmt.Printf, it fails in the
// commit that makes the model too large, on a machine without a GPU.
func Example_memoryBudget() {
	r, err := estimate.Model(classifier(), estimate.InputShape(64, 3, 224, 224), estimate.Train(estimate.AdamW))
	if err != nil {
		fmt.Println(err)
		return
	}
	if budget := 8 * alloc.GiB; !r.Fits(budget) {
		fmt.Printf("training needs %v, more than %v:\n%v", r.Peak(), budget, r)
		return
	}
	fmt.Println("the budget holds")
	// Output: the budget holds
}

func ExampleModel() {
	r, err := estimate.Model(classifier(), estimate.InputShape(64, 3, 224, 224), estimate.Train(estimate.AdamW))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("parameters:", r.Params.Count)
	fmt.Println("kept for backward:", r.Kept)
	fmt.Println("training:", r.Training.Peak, "at", r.Training.PeakAt)
	fmt.Println("inference:", r.Inference.Peak)
	// Output:
	// parameters: 4015050
	// kept for backward: 1.1 GiB
	// training: 1.6 GiB at backward of 2
	// inference: 836.1 MiB
}

func ExampleMaxBatch() {
	n, err := estimate.MaxBatch(classifier(), 24*alloc.GiB, estimate.InputShape(1, 3, 224, 224), estimate.Train(estimate.AdamW))
	fmt.Println(n, err)
	// Output: 678 <nil>
}

// LoRA is a layer of one's own: a linear layer that is not trained, with an adapter of low
// rank beside it (arXiv:2106.09685).
type LoRA struct{ In, Out, Rank int }

// Declare names the parameters, as __init__ does. What is not trained is a buffer: it has
// no gradient and no optimizer state.
func (l LoRA) Declare(d *estimate.Declaration) {
	d.Buffer("weight", l.Out, l.In)
	d.Param("down", l.Rank, l.In)
	d.Param("up", l.Out, l.Rank)
}

// Forward computes x weight' + x down' up', as forward does.
func (l LoRA) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	batch := x.Shape[0]
	sum, err := t.Op(estimate.Op{
		In: []estimate.Tensor{x}, Shape: alloc.Shape{batch, l.Out}, FLOPs: estimate.FLOPs(batch, l.Out, l.In, 2),
	})
	if err != nil {
		return estimate.Tensor{}, err
	}
	for _, width := range []int{l.Rank, l.Out} { // to have the weights' gradients, the inputs are kept
		x, err = t.Op(estimate.Op{
			In: []estimate.Tensor{x}, Shape: alloc.Shape{batch, width}, Params: true,
			Keep: []estimate.Tensor{x}, FLOPs: estimate.FLOPs(batch, width, x.Shape[1], 2),
		})
		if err != nil {
			return estimate.Tensor{}, err
		}
	}
	return t.Op(estimate.Op{In: []estimate.Tensor{sum, x}, Shape: sum.Shape, PassGrad: true})
}

func ExampleLayer() {
	r, err := estimate.Model([]estimate.Layer{LoRA{In: 4096, Out: 4096, Rank: 16}}, estimate.InputShape(8, 4096), estimate.Train(estimate.AdamW))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("trained:", r.Params.Bytes, "of", r.Params.Bytes+r.Buffers.Bytes)
	fmt.Println("optimizer:", r.Training.Optimizer)
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Output, row.Params, row.Kept)
	}
	// Output:
	// trained: 512.0 KiB of 64.5 MiB
	// optimizer: 1.0 MiB
	// 0 LoRA (8, 4096) 131072 128.5 KiB
}

func ExampleGPULayers() {
	m := estimate.Transformer{Vocab: 32000, Hidden: 4096, Blocks: 32, Heads: 32, KVHeads: 8, FFN: 14336} // Mistral 7B
	all := estimate.Quantizations()
	q4 := all[slices.IndexFunc(all, func(q estimate.Quantization) bool { return q.Name == "Q4_K_M" })]
	sizes, err := q4.Layers(m.Layers())
	if err != nil {
		fmt.Println(err)
		return
	}
	llama := estimate.LlamaCpp{Context: 8192, FlashAttention: true}
	buffer, err := m.ComputeBuffer(llama)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := estimate.Model(m.Layers(), estimate.Tokens(1, 512), estimate.ComputedIn(buffer), estimate.StoredIn(sizes),
		estimate.WithKVCache(llama.Cells(m.Cache(1, 8192, 0))), estimate.GPULayers(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d layers: %v of weights, %v of keys and values\n", r.GPULayers, r.ModelLayers, r.Inference.Weights, r.Inference.Cache)
	fmt.Println("in memory of the CPU:", r.Inference.Host)
	// Output:
	// 21 of 33 layers: 2.5 GiB of weights, 640.0 MiB of keys and values
	// in memory of the CPU: 1.9 GiB
}
