package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// classifier is the model that the budget below is about.
func classifier() []nn.Layer {
	return []nn.Layer{
		nn.Conv2d{In: 3, Out: 32, Kernel: 3, Padding: 1},
		nn.BatchNorm(32),
		nn.ReLU{InPlace: true},
		nn.MaxPool{Kernel: 2},
		nn.Flatten{},
		nn.Linear{In: 32 * 112 * 112, Out: 10},
	}
}

// A memory budget is a unit test: with t.Errorf for fmt.Printf, it fails in the
// commit that makes the model too large, on a machine without a GPU.
func Example_memoryBudget() {
	r, err := estimate.Model(classifier(), estimate.InputShape(64, 3, 224, 224), estimate.Train("adamw"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if budget := 8 * alloc.GiB; !r.Fits(budget) {
		fmt.Printf("training needs %v, more than %v:\n%v", r.Memory().Peak.Bytes, budget, r)
		return
	}
	fmt.Println("the budget holds")
	// Output: the budget holds
}

func ExampleModel() {
	r, err := estimate.Model(classifier(), estimate.InputShape(64, 3, 224, 224), estimate.Train("adamw"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("parameters:", r.Params.Count)
	fmt.Println("retained for backward:", r.Retained)
	fmt.Println("training:", r.Training.Peak.Bytes, "at", r.Training.PeakAt)
	fmt.Println("inference:", r.Inference.Peak.Bytes)
	// Output:
	// parameters: 4015050
	// retained for backward: 1.1 GiB
	// training: 1.6 GiB at backward of 2
	// inference: 836.1 MiB
}

func ExampleMaxBatch() {
	n, err := estimate.MaxBatch(classifier(), 24*alloc.GiB, estimate.InputShape(1, 3, 224, 224), estimate.Train("adamw"))
	fmt.Println(n, err)
	// Output: 525 <nil>
}

// QLoRA trains adapters beside weights of four bits.
func ExampleQuantized() {
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := estimate.Model(m.Layers, estimate.Tokens(1, 2048), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"),
		estimate.Quantized{Base: "nf4"}, estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}})
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
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, loss := range []nn.Layer{m.Loss(), nn.NextToken{InForward: true}} {
		r, err := estimate.Model(m.Layers, estimate.Tokens(1, 8192), estimate.Precision(alloc.BFloat16), estimate.Train("sgd"),
			estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}}, estimate.Checkpointed("layers.*"), estimate.WithLoss(loss))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Training.Peak.Bytes, "at", r.Training.PeakAt)
	}
	// Output:
	// 30.8 GiB at backward of loss
	// 19.1 GiB at backward of model.layers.31.mlp
}
