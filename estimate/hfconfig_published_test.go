package estimate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// publishedModels has the settings of well-known models, as their config.json at
// huggingface.co has them, and their number of parameters: num_parameters() of the
// class that architectures names, made of these settings by transformers 5.23.0.
// Those of Llama 2 7B, Llama 3 8B, Mistral, Mixtral, Qwen2.5 0.5B, Gemma, Phi-3 and
// GPT-2 stand also in KerasHub (keras_hub/src/models/*/*_presets.py: params).
var publishedModels = map[string]struct {
	config     string
	parameters int64
}{
	"meta-llama/Llama-2-7b-hf": {`{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":11008,"vocab_size":32000,"max_position_embeddings":4096,
		"hidden_act":"silu","tie_word_embeddings":false}`, 6_738_415_616},
	"meta-llama/Meta-Llama-3-8B": {`{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"max_position_embeddings":8192,
		"hidden_act":"silu","attention_bias":false,"tie_word_embeddings":false}`, 8_030_261_248},
	"meta-llama/Llama-3.2-1B": {`{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":2048,"num_hidden_layers":16,
		"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"intermediate_size":8192,"vocab_size":128256,
		"max_position_embeddings":131072,"hidden_act":"silu","mlp_bias":false,"tie_word_embeddings":true}`, 1_235_814_400},
	"mistralai/Mistral-7B-v0.1": {`{"model_type":"mistral","architectures":["MistralForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"max_position_embeddings":32768,
		"hidden_act":"silu","sliding_window":4096,"tie_word_embeddings":false}`, 7_241_732_096},
	"mistralai/Mixtral-8x7B-v0.1": {`{"model_type":"mixtral","architectures":["MixtralForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"max_position_embeddings":32768,
		"hidden_act":"silu","sliding_window":null,"num_local_experts":8,"num_experts_per_tok":2,"tie_word_embeddings":false}`, 46_702_792_704},
	"Qwen/Qwen2.5-0.5B": {`{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"hidden_size":896,"num_hidden_layers":24,
		"num_attention_heads":14,"num_key_value_heads":2,"intermediate_size":4864,"vocab_size":151936,"max_position_embeddings":32768,
		"hidden_act":"silu","sliding_window":32768,"use_sliding_window":false,"max_window_layers":24,"tie_word_embeddings":true}`, 494_032_768},
	"Qwen/Qwen2.5-7B": {`{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"hidden_size":3584,"num_hidden_layers":28,
		"num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"vocab_size":152064,"max_position_embeddings":131072,
		"hidden_act":"silu","tie_word_embeddings":false}`, 7_615_616_512},
	"google/gemma-2b": {`{"model_type":"gemma","architectures":["GemmaForCausalLM"],"hidden_size":2048,"num_hidden_layers":18,
		"num_attention_heads":8,"num_key_value_heads":1,"head_dim":256,"intermediate_size":16384,"vocab_size":256000,
		"max_position_embeddings":8192,"hidden_act":"gelu","hidden_activation":null}`, 2_506_172_416},
	"google/gemma-7b": {`{"model_type":"gemma","architectures":["GemmaForCausalLM"],"hidden_size":3072,"num_hidden_layers":28,
		"num_attention_heads":16,"num_key_value_heads":16,"head_dim":256,"intermediate_size":24576,"vocab_size":256000,
		"max_position_embeddings":8192,"hidden_act":"gelu"}`, 8_537_680_896},
	"microsoft/phi-2": {`{"model_type":"phi","architectures":["PhiForCausalLM"],"hidden_size":2560,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":10240,"vocab_size":51200,"max_position_embeddings":2048,
		"hidden_act":"gelu_new","qk_layernorm":false,"tie_word_embeddings":false}`, 2_779_683_840},
	"microsoft/Phi-3-mini-4k-instruct": {`{"model_type":"phi3","architectures":["Phi3ForCausalLM"],"hidden_size":3072,"num_hidden_layers":32,
		"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":32064,"max_position_embeddings":4096,
		"hidden_act":"silu","sliding_window":2047,"tie_word_embeddings":false}`, 3_821_079_552},
	"openai-community/gpt2": {`{"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"n_embd":768,"n_layer":12,"n_head":12,
		"n_positions":1024,"vocab_size":50257,"activation_function":"gelu_new"}`, 124_439_808},
	"google-bert/bert-base-uncased": {`{"model_type":"bert","architectures":["BertForMaskedLM"],"hidden_size":768,"num_hidden_layers":12,
		"num_attention_heads":12,"intermediate_size":3072,"vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2,
		"hidden_act":"gelu","position_embedding_type":"absolute"}`, 109_514_298},
	"google/vit-base-patch16-224-in21k": {`{"model_type":"vit","architectures":["ViTModel"],"hidden_size":768,"num_hidden_layers":12,
		"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"gelu","image_size":224,"patch_size":16,"num_channels":3,
		"qkv_bias":true}`, 86_389_248},
}

func TestConfigsGiveThePublishedNumberOfParameters(t *testing.T) {
	for name, model := range publishedModels {
		t.Run(name, func(t *testing.T) {
			c, err := Open(writeFile(t, configName, []byte(model.config)))
			require.NoError(t, err)
			report, err := c.Report()
			require.NoError(t, err)
			assert.Equal(t, model.parameters, report.Params.Count)
		})
	}
}
