package checkpoint_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

// The config.json of a Hugging Face model is enough to count its parameters.
func ExampleReadFile() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config.json")
	config := `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
		"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "torch_dtype": "bfloat16", "tie_word_embeddings": false}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	f, err := checkpoint.ReadFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	input, err := f.Input(1, 2048)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := f.Report(input)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Params.Count, "parameters")
	// Output: 1100048384 parameters
}

// A config.json of diffusers describes a model that makes images, of any size.
func ExampleFile_Images() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, []byte(`{"_class_name": "FluxTransformer2DModel", "guidance_embeds": true}`), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	f, err := checkpoint.ReadFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, side := range []int{512, 1024} {
		sized, err := f.Images(side)
		if err != nil {
			fmt.Println(err)
			return
		}
		input, err := sized.Input(1, 0)
		if err != nil {
			fmt.Println(err)
			return
		}
		r, err := sized.Report(input, estimate.Precision(alloc.BFloat16))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(side, "pixels:", r.Inputs[0][1], "places,", r.Params.Bytes, "of weights,", r.Inference.Transient, "besides")
	}
	// Output:
	// 512 pixels: 1024 places, 22.2 GiB of weights, 145.5 MiB besides
	// 1024 pixels: 4096 places, 22.2 GiB of weights, 436.5 MiB besides
}
