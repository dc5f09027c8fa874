package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// miniLM writes the real model sentence-transformers/all-MiniLM-L6-v2 into a new
// directory, with a hole where its weights were (see NOTICE in testdata).
func miniLM(t testing.TB) string {
	t.Helper()
	from := filepath.Join("testdata", "files", "all-MiniLM-L6-v2")
	files := map[string]string{}
	for name, source := range map[string]string{"model.safetensors": "model.safetensors.header", configName: configName} {
		content, err := os.ReadFile(filepath.Join(from, source))
		require.NoError(t, err)
		files[name] = string(content)
	}
	dir := writeFolder(t, files)
	require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 90_868_376))
	return dir
}

func TestOpenARealModel(t *testing.T) {
	c, err := ReadFile(miniLM(t))
	require.NoError(t, err)
	// All but the 512 position_ids, which are a buffer.
	assert.Equal(t, int64(22_713_216), c.parameters())
	totals := c.totals()
	require.Len(t, totals, 2)
	assert.Equal(t, total{safetensorsEncodings()["F32"], 103, 22_713_216, 90_852_864}, totals[0])
	assert.Equal(t, total{safetensorsEncodings()["I64"], 1, 512, 4096}, totals[1])
	name, err := c.Architecture()
	require.NoError(t, err)
	assert.Equal(t, "bert", name)

	layers, err := c.Layers()
	require.NoError(t, err)
	report, err := estimate.Model(layers, estimate.Tokens(1, 256))
	require.NoError(t, err)
	assert.Equal(t, c.parameters(), report.Params.Count)
	_, err = c.Cache(1, 256)
	assert.ErrorContains(t, err, "it writes no text")
}

const llamaConfig = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
	"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
	"vocab_size": 100, "max_position_embeddings": 128, "hidden_act": "silu", "torch_dtype": "bfloat16"}`

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		old, new, want string
	}{
		"another family":    {`"llama"`, `"rwkv"`, fmt.Sprintf("model_type: \"rwkv\" is none of the %d families that are known, which `gpumemtrack help estimate-models`", len(Families()))},
		"another class":     {`LlamaForCausalLM`, `LlamaForMultipleChoice`, `architectures: LlamaForMultipleChoice is not supported for "llama": unknown architecture`},
		"no family":         {`"model_type": "llama",`, ``, `it has no model_type`},
		"an activation":     {`"silu"`, `"laplace"`, `activation: laplace is not supported`},
		"key missing":       {`"hidden_size": 64,`, ``, `hidden_size: the key is missing`},
		"key null":          {`"hidden_size": 64`, `"hidden_size": null`, `hidden_size: the key is missing`},
		"zero":              {`"hidden_size": 64`, `"hidden_size": 0`, `hidden_size: 0 is not a number from 1`},
		"negative":          {`"hidden_size": 64`, `"hidden_size": -64`, `hidden_size: -64 is not a number from 1`},
		"too large":         {`"hidden_size": 64`, `"hidden_size": 4294967296`, `hidden_size`},
		"far too large":     {`"hidden_size": 64`, `"hidden_size": 1e30`, `not the JSON of a config.json`},
		"a string":          {`"hidden_size": 64`, `"hidden_size": "64"`, `"64" where a whole number belongs`},
		"twice":             {`"hidden_size": 64`, `"hidden_size": 64, "hidden_size": 32`, `duplicate object member name "hidden_size"`},
		"not JSON":          {`"hidden_size": 64`, `"hidden_size":`, `not the JSON of a config.json`},
		"heads":             {`"num_key_value_heads": 2`, `"num_key_value_heads": 3`, `4 heads cannot share 3 heads`},
		"an array":          {`"hidden_size": 64`, `"hidden_size": 64, "per_layer_config": [1]`, `a JSON array where an object belongs, within "/per_layer_config"`},
		"a part":            {`"llama", "architectures": ["LlamaForCausalLM"]`, `"gemma3", "vision_config": {}, "text_config": [1]`, `text_config: it is no object`},
		"no layers":         {`"llama", "architectures": ["LlamaForCausalLM"]`, `"nemotron_h", "layers_block_type": []`, `layers_block_type: it lists no layers`},
		"head size":         {`"hidden_size": 64`, `"hidden_size": 66`, `a hidden size of 66 does not divide into 4 heads`},
		"a million layers":  {`"num_hidden_layers": 2`, `"num_hidden_layers": 1000000`, `1000000 blocks, more than 1024`},
		"layer types":       {`"llama", "architectures": ["LlamaForCausalLM"]`, `"gemma2", "layer_types": ["full_attention"]`, `layer_types: it has 1 entries for 2 layers`},
		"a layer type":      {`"llama", "architectures": ["LlamaForCausalLM"]`, `"gemma2", "layer_types": ["full_attention", "linear_attention"]`, `layer_types: linear_attention is not supported for "gemma2"`},
		"sparse layers":     {`"llama", "architectures": ["LlamaForCausalLM"]`, `"qwen3_moe", "mlp_only_layers": [1]`, `mlp_only_layers: a list other than that of the first layers is not supported`},
		"no text":           {`"llama", "architectures": ["LlamaForCausalLM"]`, `"gemma3"`, `text_config, vision_config: the key is missing`},
		"experts":           {`"llama", "architectures": ["LlamaForCausalLM"]`, `"gpt_oss", "num_local_experts": 2`, `each token visits 4 experts, of 2`},
		"shared experts":    {`"llama", "architectures": ["LlamaForCausalLM"]`, `"deepseek_v3", "n_shared_experts": 2147483647`, `n_shared_experts: 2147483647 are more than 1024`},
		"index of pickles":  {`"model_type"`, `"weight_map": {"a": "b"}, "model_type"`, `it is an index of shards`},
		"nothing but space": {llamaConfig, ` `, `not the JSON of a config.json`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, llamaConfig, test.old)
			c, err := ReadFile(writeFile(t, configName, []byte(strings.Replace(llamaConfig, test.old, test.new, 1))))
			if err == nil { // it tells the numbers of a cache
				_, err = c.Report()
			}
			require.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "open config.json: ")
			assert.ErrorContains(t, err, "checkpoint: ")
		})
	}
}

// A classifier in place of the head, and numbers that are written with a fraction.
func TestConfigOfAClassifier(t *testing.T) {
	text := strings.NewReplacer("LlamaForCausalLM", "LlamaForSequenceClassification", `"hidden_size": 64`, `"hidden_size": 64.0, "id2label": {"0": "a", "1": "b", "2": "c"}`).Replace(llamaConfig)
	c, err := ReadFile(writeFile(t, configName, []byte(text)))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(2, 8))
	require.NoError(t, err)
	assert.Equal(t, alloc.Shape{2, 8, 3}, r.Output)
	for class, want := range map[string]alloc.Shape{"ForTokenClassification": {2, 8, 3}, "ForQuestionAnswering": {2, 8, 2}} {
		c, err := ReadFile(writeFile(t, configName, []byte(strings.Replace(text, "ForSequenceClassification", class, 1))))
		require.NoError(t, err)
		other, err := c.Report(estimate.Tokens(2, 8))
		require.NoError(t, err)
		assert.Equal(t, want, other.Output)
		last := int64(want[2])
		assert.Equal(t, r.Params.Count-3*64+last*64+last, other.Params.Count, "with a bias")
	}
	_, err = ReadFile(writeFile(t, configName, []byte(strings.Replace(llamaConfig, `"hidden_size": 64`, `"hidden_size": 64.5`, 1))))
	assert.ErrorContains(t, err, "64.5 where a whole number belongs")
}

// Phi has dropout in its blocks and, unless embd_pdrop says so, none of its embeddings.
func TestPhiHasNoDropoutOfEmbeddings(t *testing.T) {
	kept := func(settings string) alloc.Bytes {
		text := strings.NewReplacer(`"llama", "architectures": ["LlamaForCausalLM"]`, `"phi", `+settings, `"silu"`, `"gelu_new"`, `"num_key_value_heads": 2`, `"num_key_value_heads": 4`).Replace(llamaConfig)
		c, err := ReadFile(writeFile(t, configName, []byte(text)))
		require.NoError(t, err)
		r, err := c.Report(estimate.Tokens(2, 8))
		require.NoError(t, err)
		return r.Retained
	}
	assert.EqualValues(t, 2*8*64, kept(`"resid_pdrop": 0.1, "embd_pdrop": 0.1`)-kept(`"resid_pdrop": 0.1, "embd_pdrop": 0.0`), "a mask of a byte an element")
}

// Weights whose config.json is damaged can be read all the same.
func TestWeightsOpenWithoutAnArchitecture(t *testing.T) {
	c, err := ReadFile(writeFolder(t, map[string]string{"model.safetensors": string(byteTensors("w")), configName: "{"}))
	require.NoError(t, err)
	assert.Equal(t, int64(1), c.parameters())
	_, err = c.Architecture()
	assert.ErrorContains(t, err, "open config.json: it is not the JSON")
}

func FuzzHFConfig(f *testing.F) {
	f.Add([]byte(llamaConfig))
	f.Add([]byte(`{"model_type":"gpt2","n_embd":8,"n_layer":1,"n_head":2,"n_positions":4,"vocab_size":16}`))
	f.Add([]byte(`{"model_type":"vit","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":16,"id2label":{"0":"a"}}`))
	for _, family := range Families() {
		f.Add([]byte(strings.Replace(llamaConfig, `"llama", "architectures": ["LlamaForCausalLM"]`, `"`+family+`"`, 1)))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		Families() // the tables are read once, and are no file's
		_, _ = (&config{ModelType: "llama", text: []byte(llamaConfig)}).architecture()
		var a architecture
		var err error
		heap := allocated(func() {
			var c *config
			if c, err = readConfig(bytes.NewReader(content), int64(len(content)), "fuzz"); err == nil {
				a, err = c.architecture()
			}
		})
		if most := int64(1<<20 + 64*len(content)); heap > most {
			t.Fatalf("%d bytes allocated for a file of %d", heap, len(content))
		}
		if err == nil {
			checkArchitecture(t, a)
		}
	})
}

// Of two layers Qwen2 may have the window in the second only.
func TestWindowOfSomeLayers(t *testing.T) {
	config := strings.NewReplacer(`"llama"`, `"qwen2", "use_sliding_window": true, "sliding_window": 10, "max_window_layers": 1`,
		"LlamaForCausalLM", "Qwen2ForCausalLM").Replace(llamaConfig)
	c, err := ReadFile(writeFile(t, configName, []byte(config)))
	require.NoError(t, err)
	cache, err := c.Cache(1, 100)
	require.NoError(t, err)
	size, err := estimate.KVCache(cache)
	require.NoError(t, err)
	assert.EqualValues(t, 2*2*2*16*(100+10), size)
}

// Python writes numbers that JSON has not.
func TestConfigWithInfinity(t *testing.T) {
	text := strings.Replace(llamaConfig, "{", `{"time_step_limit": [0.0, Infinity], "a": NaN, "b": [-Infinity], "c": "\"Infinity", `, 1)
	c, err := ReadFile(writeFile(t, configName, []byte(text)))
	require.NoError(t, err)
	plain, err := ReadFile(writeFile(t, configName, []byte(llamaConfig)))
	require.NoError(t, err)
	want, err := plain.Report()
	require.NoError(t, err)
	have, err := c.Report()
	require.NoError(t, err)
	assert.Equal(t, want.Params, have.Params)
}

// The tower of Gemma 3 has a head unless its settings say otherwise, as transformers has it; published files do.
func TestGemma3TowerWithHead(t *testing.T) {
	count := func(head string) int64 {
		c, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"model_type": "gemma3_text", "hidden_size": 64,
			"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 100, "head_dim": 16}, "vision_config": {"hidden_size": 1152,
			"num_hidden_layers": 1, "num_attention_heads": 16, "intermediate_size": 4304, "image_size": 896, "patch_size": 14`+head+`}}`)))
		require.NoError(t, err)
		r, err := c.Report()
		require.NoError(t, err)
		return r.Params.Count
	}
	without := count(`, "vision_use_head": false`)
	assert.EqualValues(t, 15_238_352, count(`, "vision_use_head": true`)-without)
	assert.EqualValues(t, 15_238_352, count("")-without)
}
