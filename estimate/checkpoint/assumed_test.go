package checkpoint

import (
	"encoding/json"
	"maps"
	"regexp"
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

	assert.Contains(t, notes(`"model_type": "llama", `+sizes), "gives no dtype: the weights are float32 unless Precision gives another type")
	assert.Contains(t, notes(`"model_type": "llama", "dtype": "float7", `+sizes), `gives a dtype that is not known, "float7": the weights are float32`)
	assert.NotContains(t, notes(`"model_type": "llama", "torch_dtype": "float16", `+sizes), "dtype")

	const anew = "a model that transformers 5 makes anew ties it"
	const t5 = `"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 96, "vocab_size": 100`
	assert.Contains(t, notes(`"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], `+t5), anew)
	assert.NotContains(t, notes(`"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], `+t5), anew)
}

// The class that an answer proposes is one of transformers.
func TestProposedClassIsOfTransformers(t *testing.T) {
	var file struct{ Types map[string]covered }
	unzip(t, "testdata/torch/coverage.json.gz", &file)
	proposed := regexp.MustCompile(`"architectures": \["(\w+)"\]`)
	found := 0
	for kind, of := range file.Types {
		config := maps.Clone(of.Config)
		delete(config, "architectures")
		text, err := json.Marshal(config)
		require.NoError(t, err)
		c, err := ParseConfig("model", text)
		if err != nil {
			continue // a family that is not known
		}
		for _, class := range proposed.FindAllStringSubmatch(strings.Join(c.architecture.Assumed, "\n"), -1) {
			found++
			assert.Contains(t, of.Classes, class[1], kind)
		}
	}
	assert.NotZero(t, found)
}
