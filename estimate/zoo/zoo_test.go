package zoo_test

import (
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
			assert.Equal(t, m.Params, bare.Params.Count, "published in %s", m.Source)
			assert.Contains(t, m.Source, ": ", "where, and what it is called there")
			assert.NotZero(t, m.DType.Bits())

			r, err := estimate.Model(m.Layers, m.Input, estimate.Train(estimate.AdamW))
			require.NoError(t, err)
			assert.Equal(t, m.Params, r.Params.Count)
			assert.Positive(t, r.Inference.Peak)
			assert.Greater(t, r.Training.Peak, r.Inference.Peak)
			var rows int64
			for _, row := range r.Layers {
				rows += row.Params
			}
			if m.Config == nil {
				assert.Equal(t, m.Params, rows, "the rows add up to the model")
			} else { // some have parameters of their own, such as the scale of CLIP's logits
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
	_, err = zoo.ByName("vgg20")
	assert.ErrorContains(t, err, `no model is named "vgg20": is it vgg`)
	_, err = zoo.ByName("alexnet")
	assert.ErrorContains(t, err, `no model is named "alexnet": the names are vgg11, `)
}

func TestSimilar(t *testing.T) {
	for name, want := range map[string]string{
		"resnet5":                    "resnet50",
		"rsnet152":                   "resnet152",
		"meta-llama/Meta-Llama-3-8B": "llama-3-8b",
		"mistral":                    "mistral-7b",
		"bert-base":                  "bert-base-uncased",
		"Qwen/Qwen2.5-7B-Instruct":   "qwen2.5-7b",
		"efficientnet":               "efficientnet_b0",
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
	assert.Greater(t, len(zoo.Names()), 150)
	seen := map[string]bool{}
	for _, name := range zoo.Names() {
		assert.False(t, seen[name], name)
		seen[name] = true
	}
	m, err := zoo.ByName("Qwen3-30B-A3B")
	require.NoError(t, err)
	assert.Equal(t, int64(30532122624), m.Params)
	assert.Contains(t, string(m.Config), `"torch_dtype": "bfloat16"`)
	assert.Contains(t, m.Source, "huggingface.co/Qwen/Qwen3-30B-A3B")
}
