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

// llama8B is Llama 3 8B (arXiv:2407.21783).
var llama8B = estimate.Transformer{
	Family: estimate.Llama, Blocks: 32, Hidden: 4096, Heads: 32, KVHeads: 8, FFN: 14336, Vocab: 128256,
}

// QLoRA trains adapters beside weights of four bits.
func ExampleQuantize() {
	r, err := estimate.Model(llama8B.Layers(), estimate.Tokens(1, 2048), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW),
		estimate.Quantize(estimate.Quantized{Base: estimate.NF4}), estimate.Adapt(estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Trained.Count, "parameters are trained, of", r.Params.Count)
	fmt.Println("weights:", r.Training.Weights)
	// Output:
	// 6815744 parameters are trained, of 8037076992
	// weights: 5.2 GiB
}

// transformers' loss of a large vocabulary takes much memory; Liger's takes little.
func ExampleWithLoss() {
	for _, loss := range []estimate.Layer{llama8B.Loss(), estimate.HeadLoss{InForward: true}} {
		r, err := estimate.Model(llama8B.Layers(), estimate.Tokens(1, 8192), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.SGD),
			estimate.Adapt(estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}}), estimate.Checkpointed("layers.*"), estimate.WithLoss(loss))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Training.Peak, "at", r.Training.PeakAt)
	}
	// Output:
	// 30.8 GiB at forward of loss
	// 19.1 GiB at backward of model.layers.31.mlp
}

// Maxout is a layer of one's own: the largest of some linear functions (arXiv:1302.4389).
type Maxout struct{ In, Out, Pieces int }

// Declare names the parameters, as __init__ does.
func (l Maxout) Declare(d *estimate.Declaration) {
	d.Param("weight", l.Pieces*l.Out, l.In)
	d.Param("bias", l.Pieces*l.Out)
}

// Forward records two operations, as forward does them.
func (l Maxout) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	if len(x.Shape) != 2 || x.Shape[1] != l.In {
		return estimate.Tensor{}, t.Errorf("input %v: want (batch, %d)", x.Shape, l.In)
	}
	batch := x.Shape[0]
	all, err := t.Op(estimate.Op{ // the gradient of the weight needs the input
		In: []estimate.Tensor{x}, Shape: alloc.Shape{batch, l.Pieces, l.Out}, Params: true,
		Keep: []estimate.Tensor{x}, FLOPs: estimate.FLOPs(batch, l.Pieces, l.Out, l.In, 2),
	})
	if err != nil {
		return estimate.Tensor{}, err
	}
	shape := alloc.Shape{batch, l.Out}
	return t.Op(estimate.Op{ // and that of the maximum, which of them it was
		In: []estimate.Tensor{all}, Shape: shape, KeepOwn: []estimate.Own{{Shape: shape, DType: alloc.Int64}},
	})
}

func ExampleLayer() {
	layers := []estimate.Layer{Maxout{In: 784, Out: 240, Pieces: 5}, estimate.Linear{In: 240, Out: 10}}
	r, err := estimate.Model(layers, estimate.InputShape(100, 784), estimate.Train(estimate.AdamW))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Output, row.Params, row.Kept)
	}
	// Output:
	// 0 Maxout (100, 240) 942000 493.8 KiB
	// 1 Linear (100, 10) 2410 93.8 KiB
}

// A Module is a layer of named parts. Its function records what forward does, and looks for no errors.
func ExampleModule() {
	gated := estimate.Module{
		Name: "Gated",
		Parts: estimate.Sequential{
			estimate.As("value", estimate.Linear{In: 64, Out: 64}),
			estimate.As("gate", estimate.Sequential{estimate.Linear{In: 64, Out: 64}, estimate.Sigmoid{}}),
		},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			return f.Add(x, f.Mul(f.Call("value", x), f.Call("gate", x)))
		},
	}
	r, err := estimate.Model([]estimate.Layer{estimate.As("blocks", estimate.Repeat{N: 2, Layer: gated})}, estimate.InputShape(32, 64))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Params)
	}
	// Output:
	// blocks Repeat 0
	// blocks.0 Gated 0
	// blocks.0.value Linear 4160
	// blocks.0.gate Sequential 0
	// blocks.0.gate.0 Linear 4160
	// blocks.0.gate.1 Sigmoid 0
	// blocks.1 Gated 0
	// blocks.1.value Linear 4160
	// blocks.1.gate Sequential 0
	// blocks.1.gate.0 Linear 4160
	// blocks.1.gate.1 Sigmoid 0
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
