package checkpoint

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
