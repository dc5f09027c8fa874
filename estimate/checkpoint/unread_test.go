package checkpoint

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// A key that is not read is named in every form of the answer, and raises the upper bound by as much as the note says.
func TestAnswerNamesWhatIsNotRead(t *testing.T) {
	report := func(more string) (*File, *estimate.Report) {
		f, err := ParseConfig("model", []byte(`{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
			"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100`+more+`}`))
		require.NoError(t, err)
		input, err := f.Input(1, 16)
		require.NoError(t, err)
		r, err := f.Report(input)
		require.NoError(t, err)
		return f, r
	}
	_, usual := report("")
	assert.Empty(t, usual.NotRead)
	assert.NotContains(t, usual.String(), "not read")

	_, odd := report(`, "a\n\u001b[31mb": 5`)
	assert.Equal(t, []string{`a\n\x1b[31mb`}, odd.NotRead, "a key prints on one line")

	f, r := report(`, "kv_channels": 32, "output_hidden_states": true`)
	keys := []string{"kv_channels", "output_hidden_states"}
	assert.Equal(t, keys, f.NotRead())
	assert.Equal(t, keys, r.NotRead)
	assert.Contains(t, r.String(), "not read: kv_channels, output_hidden_states\n")
	assert.Contains(t, r.String(), "transformers has no kv_channels for this model")
	assert.Equal(t, usual.Inference.Peak.Bytes, r.Inference.Peak.Bytes)
	assert.GreaterOrEqual(t, r.Inference.Peak.Upper, 2*usual.Inference.Peak.Bytes)
	assert.GreaterOrEqual(t, r.Needs(), usual.Needs()+usual.Inference.Peak.Bytes)

	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"not_read":["kv_channels","output_hidden_states"]`)

	_, err = ParseConfig("model", []byte(`{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "per_layer_config": {"1": {"skip": ["mlp"]}}}`))
	assert.ErrorIs(t, err, ErrUnknownArchitecture)
}

// A key of a part that is not read raises the upper bound by the weights of that part at most, unless images run through it.
func TestUnreadKeysOfPartsRaiseTheirShare(t *testing.T) {
	var covers struct{ Types map[string]covered }
	unzip(t, "testdata/torch/coverage.json.gz", &covers)
	classes := map[string]string{"llava": "LlavaForConditionalGeneration", "gemma3n": "Gemma3nForConditionalGeneration"}
	report := func(kind, part, key string, value any, images int) *estimate.Report {
		config := copied(covers.Types[kind].Config)
		config["architectures"] = []string{classes[kind]}
		if key != "" {
			config[part].(map[string]any)[key] = value
		}
		text, err := json.Marshal(config)
		require.NoError(t, err)
		f, err := ParseConfig("model", text)
		require.NoError(t, err)
		if images > 0 {
			f, err = f.Prompted(InPrompt{Images: images, Width: 336, Height: 336})
			require.NoError(t, err)
		}
		input, err := f.Input(1, 0)
		require.NoError(t, err)
		r, err := f.Report(input, estimate.TextAlone())
		require.NoError(t, err)
		return r
	}
	const tower = 1_800_000_000 // bytes of the towers and projectors in float32, at most
	for _, c := range []struct {
		kind, part, key string
		value           any
		most            alloc.Bytes // 0 means the whole
		images          int
	}{
		{"llava", "vision_config", "vocab_size", 1, tower, 0},
		{"llava", "vision_config", "vocab_size", 1, 0, 1},
		{"gemma3n", "audio_config", "conf_reduction_factor", 8, 4_000_000_000, 0},
		{"gemma3n", "text_config", "final_logit_softcapping", 60, 0, 0},
	} {
		usual, r := report(c.kind, c.part, "", nil, c.images), report(c.kind, c.part, c.key, c.value, c.images)
		assert.Equal(t, []string{c.part + "." + c.key}, r.NotRead)
		more := r.Inference.Peak.Upper - usual.Inference.Peak.Upper
		if c.most == 0 {
			assert.Greater(t, more, r.Inference.Peak.Bytes/2, c.key)
			continue
		}
		assert.Positive(t, more, c.key)
		assert.LessOrEqual(t, more, c.most, c.key)
	}
}

// Of an unknown model whose text is known, the answer about keys and values names what is not read of the text.
func TestCacheOfUnknownModelNamesWhatIsNotRead(t *testing.T) {
	f, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "unheard_of", "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "kv_channels": 32}}`)))
	require.NoError(t, err)
	_, err = f.Cache(1, 16)
	require.NoError(t, err)
	assert.Equal(t, []string{"text_config.kv_channels"}, f.NotRead())
}
