package checkpoint

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a config.json leaves open, and no tensors tell, is said.
func TestReportSaysWhatIsAssumed(t *testing.T) {
	const sizes = `"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 100`
	notes := func(config string) string {
		c, err := ReadFile(writeFile(t, configName, []byte("{"+config+"}")))
		require.NoError(t, err)
		r, err := c.Report()
		require.NoError(t, err)
		return strings.Join(r.Notes, "\n")
	}
	const headless = `names no architectures: this is LlamaModel, with neither a head nor a loss; add the class that is meant, such as "architectures": ["LlamaForCausalLM"]`
	assert.Contains(t, notes(`"model_type": "llama", `+sizes), headless)
	assert.NotContains(t, notes(`"model_type": "llama", "architectures": ["LlamaModel"], `+sizes), "architectures")
	assert.Contains(t, notes(`"model_type": "bert", `+sizes), "BertForSequenceClassification")

	const anew = "a model that transformers 5 makes anew ties it"
	const t5 = `"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 96, "vocab_size": 100`
	assert.Contains(t, notes(`"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], `+t5), anew)
	assert.NotContains(t, notes(`"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], `+t5), anew)
}
