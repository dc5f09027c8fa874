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
// huggingface.co has them, and its number of parameters, which testdata/published/count.py
// counted: it is that of the class that architectures names, made of these settings by
// transformers.
type publishedModel struct {
	Config json.RawMessage
	Params int64
}

func publishedModels(t *testing.T) map[string]publishedModel {
	data, err := os.ReadFile("testdata/published/configs.json")
	require.NoError(t, err)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &file))
	delete(file, "transformers") // its version
	models := map[string]publishedModel{}
	for name, value := range file {
		var m publishedModel
		require.NoError(t, json.Unmarshal(value, &m))
		models[name] = m
	}
	require.Greater(t, len(models), 30)
	return models
}

func TestConfigsGiveThePublishedNumberOfParameters(t *testing.T) {
	for name, model := range publishedModels(t) {
		t.Run(name, func(t *testing.T) {
			c, err := Open(writeFile(t, configName, model.Config))
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
		"openai/gpt-oss-20b":               {8192, 2 * 2 * 8 * 64 * (12*8192 + 12*128)},
		"openai/gpt-oss-120b":              {100, 2 * 2 * 8 * 64 * 36 * 100}, // shorter than the window
		"deepseek-ai/DeepSeek-V3":          {4096, 2 * 61 * (512 + 64) * 4096},
		"Qwen/Qwen2.5-7B":                  {32768, 2 * 2 * 28 * 4 * 128 * 32768},
		"Qwen/Qwen3-Next-80B-A3B-Instruct": {4096, 2 * (2*12*2*256*4096 + 36*(8192*4+32*128*128))}, // three of four layers have a state in place of it
		"meta-llama/Llama-4-Scout-17B-16E": {32768, 2 * 2 * 8 * 128 * (12*32768 + 36*8192)},
		"deepseek-ai/DeepSeek-V2":          {4096, 2 * 60 * (512 + 64) * 4096},
		"state-spaces/mamba-130m-hf":       {4096, 2 * 24 * 1536 * (16 + 4)},
		"openai/whisper-tiny":              {100, 2 * 2 * 4 * 384 * (100 + 1500)}, // and of the sound
		"google-t5/t5-small":               {100, 2 * 2 * 6 * 512 * (100 + 100)},
		"tiiuae/falcon-7b":                 {2048, 2 * 2 * 32 * 64 * 2048},
		"Qwen/Qwen2-VL-7B-Instruct":        {4096, 2 * 2 * 28 * 4 * 128 * 4096},
		"mistralai/Mistral-7B-v0.1":        {32768, 2 * 2 * 32 * 8 * 128 * 4096},
	} {
		model, ok := models[name]
		require.True(t, ok, name)
		c, err := Open(writeFile(t, configName, model.Config))
		require.NoError(t, err)
		cache, err := c.Cache(3, want.context)
		require.NoError(t, err)
		have, err := estimate.KVCache(cache)
		require.NoError(t, err)
		assert.EqualValues(t, 3*want.bytes, have, name)
	}
}
