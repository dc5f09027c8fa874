package checkpoint

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// publishedModel has the settings of a well-known model, as its config.json at
// huggingface.co has them, and its number of parameters, which estimate/zoo/count.py
// counted: it is that of the class that architectures names, made of these settings by
// transformers.
type publishedModel struct {
	Config json.RawMessage
	Params int64
}

func publishedModels(t *testing.T) map[string]publishedModel {
	models := map[string]publishedModel{}
	for _, path := range []string{"../zoo/models.json", "../zoo/testdata/others.json"} {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var file map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &file))
		delete(file, "transformers") // its version
		for name, value := range file {
			var m publishedModel
			require.NoError(t, json.Unmarshal(value, &m))
			models[name] = m
		}
	}
	require.Greater(t, len(models), 30)
	return models
}

func TestConfigsGiveThePublishedNumberOfParameters(t *testing.T) {
	for name, model := range publishedModels(t) {
		t.Run(name, func(t *testing.T) {
			c, err := ReadFile(writeFile(t, configName, model.Config))
			require.NoError(t, err)
			report, err := c.Report()
			require.NoError(t, err)
			assert.Equal(t, model.Params, report.Params.Count)
		})
	}
}

// The bytes that a token takes in the cache of float16 once it has so many before it: by hand
// from the settings, and for DeepSeek V3 as arXiv:2412.19437, section 2.1.1 has it.
func TestConfigsGiveTheCache(t *testing.T) {
	models := publishedModels(t)
	for name, want := range map[string]struct {
		context int
		bytes   int64
	}{
		"meta-llama/Meta-Llama-3-8B":       {8192, 2 * 2 * 32 * 8 * 128 * 8192},
		"Qwen/Qwen3-0.6B":                  {8192, 2 * 2 * 28 * 8 * 128 * 8192},
		"google/gemma-2-2b":                {8192, 2 * 2 * 4 * 256 * (13*8192 + 13*4096)},
		"google/gemma-3-1b-it":             {32768, 2 * 2 * 1 * 256 * (4*32768 + 22*512)},
		"google/gemma-3-4b-it":             {32768, 2 * 2 * 4 * 256 * (5*32768 + 29*1024)},
		"google/gemma-3n-E2B-it":           {32768, 2 * 2 * 2 * 256 * (4*32768 + 16*512)}, // ten of thirty layers borrow
		"google/gemma-3n-E4B-it":           {32768, 2 * 2 * 2 * 256 * (4*32768 + 16*512)},
		"openai/gpt-oss-20b":               {8192, 2 * 2 * 8 * 64 * (12*8192 + 12*128)},
		"openai/gpt-oss-120b":              {100, 2 * 2 * 8 * 64 * 36 * 100}, // shorter than the window
		"deepseek-ai/DeepSeek-V3":          {4096, 2 * 61 * (512 + 64) * 4096},
		"Qwen/Qwen2.5-7B":                  {32768, 2 * 2 * 28 * 4 * 128 * 32768},
		"Qwen/Qwen3-Next-80B-A3B-Instruct": {4096, 2 * (2*12*2*256*4096 + 36*(8192*4+2*32*128*128))}, // three of four layers have a state in float32 in place of it
		"LiquidAI/LFM2-1.2B":               {4096, 2 * (2*6*8*64*4096 + 10*2048*3)},                  // ten of sixteen layers have a convolution
		"meta-llama/Llama-4-Scout-17B-16E": {32768, 2 * 2 * 8 * 128 * (12*32768 + 36*8192)},
		"deepseek-ai/DeepSeek-V2":          {4096, 2 * 60 * (512 + 64) * 4096},
		"state-spaces/mamba-130m-hf":       {4096, 2 * 24 * 1536 * (2*16 + 4)},
		"openai/whisper-tiny":              {100, 2 * 2 * 4 * 384 * (100 + 1500)}, // and of the sound
		"google-t5/t5-small":               {100, 2 * 2 * 6 * 512 * (100 + 100)},
		"tiiuae/falcon-7b":                 {2048, 2 * 2 * 32 * 64 * 2048},
		"Qwen/Qwen2-VL-7B-Instruct":        {4096, 2 * 2 * 28 * 4 * 128 * 4096},
		"mistralai/Mistral-7B-v0.1":        {32768, 2 * 2 * 32 * 8 * 128 * 4096},
	} {
		model, ok := models[name]
		require.True(t, ok, name)
		c, err := ReadFile(writeFile(t, configName, model.Config))
		require.NoError(t, err)
		cache, err := c.Cache(3, want.context)
		require.NoError(t, err)
		have, err := estimate.KVCache(cache)
		require.NoError(t, err)
		assert.EqualValues(t, 3*want.bytes, have, name)
	}
}

// ChatGLM's code lies beside its weights, so that transformers cannot count it. The numbers of parameters are
// those that the model cards at huggingface.co have of the safetensors.
func TestChatGLM(t *testing.T) {
	const both = `"model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128,
		"num_attention_heads": 32, "multi_query_attention": true, "multi_query_group_num": 2, "add_qkv_bias": true, "add_bias_linear": false,
		"rmsnorm": true, "post_layer_norm": true, "torch_dtype": "bfloat16"`
	for name, test := range map[string]struct {
		config string
		params int64
		cache  int64 // of a token
	}{
		"zai-org/chatglm3-6b":   {`"num_layers": 28, "padded_vocab_size": 65024`, 6_243_584_000, 2 * 2 * 28 * 2 * 128},
		"zai-org/glm-4-9b-chat": {`"num_layers": 40, "padded_vocab_size": 151552`, 9_399_951_360, 2 * 2 * 40 * 2 * 128},
	} {
		c, err := ReadFile(writeFile(t, configName, []byte("{"+both+", "+test.config+"}")))
		require.NoError(t, err, name)
		report, err := c.Report(estimate.Tokens(1, 64), estimate.Train("adamw"))
		require.NoError(t, err, name)
		assert.Equal(t, test.params, report.Params.Count, name)
		cache, err := c.Cache(1, 1000)
		require.NoError(t, err, name)
		have, err := estimate.KVCache(cache)
		require.NoError(t, err, name)
		assert.EqualValues(t, 1000*test.cache, have, name)
	}
	_, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "vocab_size": 130528}`)))
	assert.ErrorIs(t, err, ErrUnknownArchitecture, "the first ChatGLM is built in another way")
}
