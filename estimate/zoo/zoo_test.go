package zoo_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func TestParametersAreThePublishedOnes(t *testing.T) {
	for _, name := range zoo.Names() {
		t.Run(name, func(t *testing.T) {
			m, err := zoo.ByName(name)
			require.NoError(t, err)
			bare, err := estimate.Model(m.Layers)
			require.NoError(t, err)
			assert.Equal(t, m.Params, bare.Params.Count, "published in %s", zoo.SourceOf(m))
			assert.Contains(t, zoo.SourceOf(m), ": ", "where, and what it is called there")
			assert.NotZero(t, m.DType.Bits())

			r, err := estimate.Model(m.Layers, m.Input, estimate.Train("adamw"))
			require.NoError(t, err)
			assert.Equal(t, m.Params, r.Params.Count)
			assert.Positive(t, r.Inference.Peak.Bytes)
			assert.Greater(t, r.Training.Peak.Bytes, r.Inference.Peak.Bytes)
			var rows int64
			for _, row := range r.Layers {
				rows += row.Params
			}
			switch {
			case m.Config == nil:
				assert.Equal(t, m.Params, rows, "the rows add up to the model")
			case !strings.Contains(string(m.Config), "DiffusionPipeline"): // whose held parts have no rows
				// some have parameters of their own, such as the scale of CLIP's logits
				assert.InEpsilon(t, m.Params, rows, 0.02)
			}
		})
	}
}

func TestByName(t *testing.T) {
	m, err := zoo.ByName("VGG19-BN")
	require.NoError(t, err)
	assert.Equal(t, "vgg19_bn", m.Name)
	m, err = zoo.ByName("Llama3-8B")
	require.NoError(t, err)
	assert.Equal(t, "llama-3-8b", m.Name)
	for name, want := range map[string]string{
		"meta-llama/Llama-3.1-8B": "llama-3.1-8b", "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b", "llama3.1:8b": "llama-3.1-8b",
		"meta-llama/Llama-2-7b-chat-hf": "llama-2-7b", "LLAMA 3.3 70B": "llama-3.3-70b-instruct", "huggyllama/llama-7b": "llama-7b",
		"Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b", "Qwen/Qwen2.5-Coder-7B-Instruct": "qwen2.5-7b", "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
		"mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3", "mistralai/Mistral-7B-v0.1": "mistral-7b", "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
		"mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b", "google/gemma-3-4b-pt": "gemma-3-4b-it", "deepseek-ai/DeepSeek-R1-0528": "deepseek-r1",
		"openai/gpt-oss-20b": "gpt-oss-20b", "openai/whisper-large": "whisper-large-v2", "facebook/dinov2-base": "dinov2-base",
		"google-bert/bert-base-uncased": "bert-base-uncased", "google/vit-base-patch16-224": "vit-b-16", "lmsys/vicuna-7b-v1.5": "llama-2-7b",
		"google/gemma-4-31b-it": "gemma-4-31b-it", "gemma4:e2b": "gemma-4-e2b-it", "Qwen/Qwen3.6-27B": "qwen3.5-27b", "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b", "swiss-ai/Apertus-8B-2509": "apertus-8b",
		"Z-Image-Turbo": "z-image", "black-forest-labs/FLUX.1-Krea-dev": "flux.1-dev", "Wan-AI/Wan2.1-T2V-14B-Diffusers": "wan2.1-t2v-14b", "moonshotai/Kimi-K2-Instruct": "kimi-k2", "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
		"ResNet-50": "resnet50", "sd3": "sd3-medium", "stable-diffusion-xl-base-1.0": "sdxl", "Mixtral-8x22B": "mixtral-8x22b-v0.1", "Phi-3-mini": "phi-3-mini-4k-instruct", "GPT-2": "gpt2", "sentence-transformers/all-MiniLM-L6-v2": "all-minilm-l6-v2",
	} {
		m, err := zoo.ByName(name)
		if assert.NoError(t, err, name) {
			assert.Equal(t, want, m.Name, name)
		}
	}
	// What changes the sizes is not left out: a quantized file, another vocabulary, a size that the name does not say.
	for _, name := range []string{"Qwen/Qwen2.5-7B-Instruct-AWQ", "mistral", "bert", "t5", "openai/whisper-tiny.en", "roberta", "llama3.1"} {
		_, err := zoo.ByName(name)
		assert.ErrorContains(t, err, "is it", name)
	}
	_, err = zoo.ByName("vgg20")
	assert.ErrorContains(t, err, `no model is named "vgg20": is it vgg`)
	_, err = zoo.ByName("alexnet")
	assert.ErrorContains(t, err, `no model is named "alexnet", nor alike`)
}

// A model with the layers of another has its own title.
func TestTitles(t *testing.T) {
	for name, want := range map[string]string{
		"Qwen3.6-35B-A3B": "Qwen3.6-35B-A3B", "qwen/qwen3.6-27b": "Qwen3.6-27B", "qwen3.5-27b": "Qwen3.5-27B", "sdxl": "stable-diffusion-xl-base-1.0", "ResNet-50": "ResNet-50",
		"meta-llama/Meta-Llama-3-8B": "Meta-Llama-3-8B", "llama3:8b": "Meta-Llama-3-8B",
	} {
		m, err := zoo.ByName(name)
		if assert.NoError(t, err, name) {
			assert.Equal(t, want, m.Title, name)
		}
	}
}

func TestSimilar(t *testing.T) {
	for name, want := range map[string]string{
		"resnet5":                      "resnet50",
		"rsnet152":                     "resnet152",
		"gtp2":                         "gpt2",
		"Qwen3.6-35B":                  "qwen3.6-35b-a3b",
		"lama-3-8b":                    "llama-3-8b",
		"mistral":                      "mistral-7b",
		"bert-base":                    "bert-base-cased",
		"Qwen/Qwen2.5-7B-Instruct-AWQ": "qwen2.5-7b",
		"efficientnet":                 "efficientnet_b0",
	} {
		if got := zoo.Similar(name); assert.NotEmpty(t, got, name) {
			assert.Equal(t, want, got[0], name)
			assert.LessOrEqual(t, len(got), 5)
		}
	}
	for _, name := range []string{"", "ab", "rwkv-world", "some-model-of-mine"} {
		assert.Empty(t, zoo.Similar(name), name)
	}
}

func TestModelsAreTheCallersOwn(t *testing.T) {
	a, err := zoo.ByName("resnet18")
	require.NoError(t, err)
	a.Layers[0] = nil
	b, err := zoo.ByName("resnet18")
	require.NoError(t, err)
	assert.NotNil(t, b.Layers[0])
}

// The most used models have names, and those that have a config.json give it.
func TestNamesOfPublishedConfigs(t *testing.T) {
	assert.Greater(t, len(zoo.Names()), 240)
	seen := map[string]bool{}
	for _, name := range zoo.Names() {
		assert.False(t, seen[name], name)
		seen[name] = true
	}
	m, err := zoo.ByName("Qwen3-30B-A3B")
	require.NoError(t, err)
	assert.Equal(t, int64(30532122624), m.Params)
	assert.Contains(t, string(m.Config), `"torch_dtype": "bfloat16"`)
	assert.Contains(t, zoo.SourceOf(m), "huggingface.co/Qwen/Qwen3-30B-A3B")
}
