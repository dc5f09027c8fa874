package llamacpp_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func ExampleServer() {
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	cache, err := m.Cache(1, 8192)
	if err != nil {
		fmt.Println(err)
		return
	}
	served, err := m.Served(cache, llamacpp.Server{FlashAttention: true, GPULayers: 21})
	if err != nil {
		fmt.Println(err)
		return
	}
	stored, err := llamacpp.Quantization("Q4_K_M").Stored(m.Layers)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := estimate.Model(m.Layers, estimate.Tokens(1, 512), served, stored)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d layers: %v of weights, %v of keys and values\n", r.GPULayers, r.ModelLayers, r.Inference.Weights, r.Inference.Cache)
	fmt.Println("in memory of the CPU:", r.Inference.Host)
	// Output:
	// 21 of 33 layers: 2.8 GiB of weights, 640.0 MiB of keys and values
	// in memory of the CPU: 2.1 GiB
}
