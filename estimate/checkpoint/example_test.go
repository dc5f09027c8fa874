package checkpoint_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

// The config.json of a Hugging Face model is enough to count its parameters.
func ExampleOpen() {
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

	f, err := checkpoint.Open(path)
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
