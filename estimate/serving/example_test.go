package serving_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// 40 GiB are left for the cache of Llama 3 8B on an H100.
func ExampleVLLM_Plan() {
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	specs, err := m.CacheSpecs()
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := serving.VLLM{MaxModelLen: 8192}.Plan(specs, 40*alloc.GiB)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plan.Blocks, "blocks of", plan.BytesPerBlock)
	fmt.Println(plan.Tokens, "tokens,", plan.Requests, "requests at once")
	// Output:
	// 20480 blocks of 2.0 MiB
	// 327680 tokens, 39 requests at once
}

// How much memory does the cache need for 50 requests?
func ExampleVLLM_Budget() {
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	specs, err := m.CacheSpecs()
	if err != nil {
		fmt.Println(err)
		return
	}
	budget, err := serving.VLLM{MaxModelLen: 8192, KVType: "fp8"}.Budget(specs, 50)
	fmt.Println(budget, err)
	// Output: 25.0 GiB <nil>
}
