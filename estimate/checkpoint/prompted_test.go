package checkpoint

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

const llavaConfig = `{"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
	"text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100},
	"vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}}`

// Images in the prompt run through the tower: they take tokens of the text, memory, and gradients that keep activations.
func TestPromptedImagesRun(t *testing.T) {
	text, err := ParseConfig("llava", []byte(llavaConfig))
	require.NoError(t, err)
	seen, err := text.Prompted(InPrompt{Images: 3})
	require.NoError(t, err)
	tokens, sized := seen.ImageTokens()
	assert.Equal(t, 3*16, tokens)
	assert.False(t, sized, "images are scaled to one size")
	none, _ := text.ImageTokens()
	assert.Zero(t, none)
	report := func(c *File, length int, opts ...estimate.Option) *estimate.Report {
		input, err := c.Input(2, length)
		require.NoError(t, err)
		r, err := c.Report(append(opts, input)...)
		require.NoError(t, err)
		return r
	}
	usual, with := report(text, 64), report(seen, 64)
	assert.Equal(t, usual.Params, with.Params)
	assert.Equal(t, []alloc.Shape{{2, 64}, {2, 3, 3, 64, 64}}, with.Inputs)
	assert.Greater(t, with.Retained, usual.Retained)
	assert.Greater(t, with.Inference.Peak.Bytes, usual.Inference.Peak.Bytes)
	assert.Equal(t, []string{estimate.MissingTower}, usual.Missing)
	assert.Equal(t, estimate.Unbounded, usual.Needs())
	assert.Empty(t, with.Missing)
	assert.Less(t, with.Needs(), estimate.Unbounded)
	assert.Less(t, report(text, 64, estimate.TextAlone()).Needs(), with.Needs(), "no text has images")
	assert.Equal(t, alloc.Shape{2, 2048}, report(seen, 0).Inputs[0], "the images are a part of the context")
	frozen := report(seen, 64, estimate.Train("adam"), estimate.Frozen("vision_tower"))
	assert.Less(t, frozen.Retained, with.Retained, "a frozen tower keeps nothing for its weights")
	assert.Greater(t, frozen.Retained, usual.Retained, "the projector is trained")

	_, err = seen.Input(2, 40)
	assert.ErrorContains(t, err, "48 stand for the images")
	for _, p := range []InPrompt{{}, {Images: -1}, {Images: 1, Width: -3}, {Images: 1 << 20}, {Images: 1, Height: 1 << 30}} {
		_, err = text.Prompted(p)
		assert.Error(t, err, "%+v", p)
	}
	alone, err := ParseConfig("llama", []byte(`{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}`))
	require.NoError(t, err)
	_, err = alone.Prompted(InPrompt{Images: 1})
	assert.ErrorContains(t, err, "reads no images with its text")
}

// Where a config.json lets no image run, the error says so in place of blaming the image's size.
func TestConfigThroughWhichNoImageRuns(t *testing.T) {
	c, err := ParseConfig("gemma3", []byte(`{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"model_type": "siglip_vision_model"}}`))
	require.NoError(t, err)
	_, err = c.Prompted(InPrompt{Images: 1})
	assert.EqualError(t, err, "checkpoint: images in the prompt: no images run through a gemma3 model of this config.json: mm_tokens_per_image is 256, but the 14 patches along an image's side do not divide into 16 squares")
}

// The tokens that stand for an image are as many as the processors of transformers put into a text (testdata/torch/tokens.py).
func TestImageTokensAsProcessorsCountThem(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/tokens.json")
	require.NoError(t, err)
	var models map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &models))
	delete(models, "transformers")
	for name, text := range models {
		var m struct {
			Config json.RawMessage
			Tokens [][3]int // width, height, tokens
		}
		require.NoError(t, json.Unmarshal(text, &m), name)
		c, err := ParseConfig(name, m.Config)
		require.NoError(t, err, name)
		require.NotEmpty(t, m.Tokens)
		for _, image := range m.Tokens {
			with, err := c.Prompted(InPrompt{Images: 1, Width: image[0], Height: image[1]})
			require.NoError(t, err, name)
			tokens, sized := with.ImageTokens()
			assert.True(t, sized, name)
			assert.Equal(t, image[2], tokens, "%s: %d x %d", name, image[0], image[1])
			input, err := with.Input(1, 0)
			require.NoError(t, err, name)
			_, err = with.Report(input)
			assert.NoError(t, err, "%s: %d x %d", name, image[0], image[1])
		}
	}
}
