package checkpoint_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// quantizedConfig is a config.json with this quantization_config.
func quantizedConfig(t *testing.T, base map[string]any, q any) *checkpoint.File {
	t.Helper()
	of := map[string]any{"torch_dtype": "bfloat16"}
	maps.Copy(of, base)
	if q != nil {
		of["quantization_config"] = q
	}
	text, err := json.Marshal(of)
	require.NoError(t, err)
	c, err := checkpoint.ParseConfig("config.json", text)
	require.NoError(t, err)
	return c
}

// The libraries' own tensors (testdata/quantized/sizes.py), to the byte.
func TestQuantizedConfigs(t *testing.T) {
	text, err := os.ReadFile("testdata/quantized/sizes.json")
	require.NoError(t, err)
	var file struct {
		Bases map[string]map[string]any
		Cases []struct {
			Base  string
			Q     json.RawMessage `json:"quantization_config"`
			Bytes alloc.Bytes
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	assert.Greater(t, len(file.Cases), 70)
	for _, of := range file.Cases {
		c := quantizedConfig(t, file.Bases[of.Base], of.Q)
		r, err := c.Report()
		require.NoError(t, err, string(of.Q))
		assert.Equal(t, of.Bytes, r.Params.Bytes, "%s %s: %s", of.Base, of.Q, c.Published())
		assert.Equal(t, of.Bytes, r.Inference.Weights)
	}
}

// Sizes of published files: "total_size" of their model.safetensors.index.json.
func TestPublishedQuantizedSizes(t *testing.T) {
	for name, want := range map[string]struct {
		bytes  alloc.Bytes
		within float64
		types  string
	}{
		"gpt-oss-20b":      {13761264768, 0, "MXFP4 experts, bfloat16 the rest"},
		"gpt-oss-120b":     {65248815744, 0, "MXFP4 experts, bfloat16 the rest"},
		"kimi-k2-thinking": {594e9, 0.002, "int4 experts, bfloat16 the rest"},                                                  // as its card says
		"deepseek-v3":      {688586727753 - 11.61e9 - 2*129280*7168*2, 0.003, "FP8 in blocks of 128 x 128, bfloat16 the rest"}, // without the extra block, its embedding and head
	} {
		m, err := zoo.ByName(name)
		require.NoError(t, err)
		p := m.Published()
		assert.True(t, p.Quantized)
		assert.Equal(t, want.types, p.Types)
		assert.InDelta(t, float64(want.bytes), float64(p.Bytes), want.within*float64(want.bytes), name)

		c, err := checkpoint.ParseConfig(name, m.Config)
		require.NoError(t, err)
		assert.Equal(t, want.types, c.Published())
		served, err := c.Report()
		require.NoError(t, err)
		asked, err := c.Report(estimate.Precision(alloc.BFloat16))
		require.NoError(t, err)
		assert.InEpsilon(t, float64(2*asked.Params.Count), float64(asked.Params.Bytes), 0.001, "in the type that was asked for; routers are float32")
		assert.NotContains(t, asked.Notes, "quantized")
		halves, err := c.Report(estimate.Sharding{Tensor: 2})
		require.NoError(t, err)
		assert.InEpsilon(t, float64(served.Inference.Weights)/2, float64(halves.Inference.Weights), 0.1, "packed weights divide too")
	}
}

func TestUnreadQuantizations(t *testing.T) {
	base := map[string]any{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
	wide, err := quantizedConfig(t, base, nil).Report()
	require.NoError(t, err)
	for text, reason := range map[string]string{
		`{"quant_method": "vptq"}`: "this method is not read",
		`{"quant_method": "spqr"}`: "this method is not read",
		`{"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:(?!x)"], "weights": {"num_bits": 8, "type": "int"}}}, "format": "int-quantized"}`: "the pattern",
		`{"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 2, "type": "int"}}}, "format": "marlin-24"}`:       "marlin-24 is not read",
		`{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}`:                                                                      "sparse-24-bitmask",
		`{"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}`:                                                                                                          "W4A8_AWQ",
		`{"quant_method": "torchao", "quant_type": "int4"}`:                                                                                                               "quant_type is not read",
		`{"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {}}}`:                                                                                                    "dynamic settings",
		`{"quant_method": "fp8", "modules_to_not_convert": ["a("]}`:                                                                                                       "the pattern",
		`{"quant_method": "bitsandbytes"}`:                                                                                                                                "neither load_in_4bit",
		`{"quant_method": "quanto", "weights": "int3"}`:                                                                                                                   "int3",
	} {
		c := quantizedConfig(t, base, json.RawMessage(text))
		r, err := c.Report()
		require.NoError(t, err)
		assert.Equal(t, wide.Params.Bytes, r.Params.Bytes, text)
		assert.Contains(t, strings.Join(r.Notes, "\n"), "counted as if they were not, since", text)
		assert.Contains(t, strings.Join(r.Notes, "\n"), reason)
	}
	for _, text := range []string{`7`, `{"quant_method": 3}`, `{"quant_method": "fp8", "weight_block_size": [0, 128]}`, `{"quant_method": "gptq", "bits": "x"}`,
		`{"quant_method": "awq", "bits": -4}`, `{"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 5, "group_size": 64}}}`} {
		c, err := json.Marshal(base)
		require.NoError(t, err)
		_, err = checkpoint.ParseConfig("config.json", []byte(strings.Replace(string(c), "{", `{"quantization_config": `+text+`, `, 1)))
		assert.ErrorContains(t, err, "quantization_config", text)
	}
}

// What ModelOpt says beside config.json, and the layouts of libraries that need a GPU: one block of Llama's shapes.
func TestLayoutsOfFiles(t *testing.T) {
	base := map[string]any{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": 128, "hidden_size": 256, "intermediate_size": 512,
		"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true}
	shapes := [][2]int{{256, 256}, {128, 256}, {128, 256}, {256, 256}, {512, 256}, {512, 256}, {256, 512}}
	const rest = 2 * (128*256 + 3*256)
	of := func(each func(out, in int) int) alloc.Bytes {
		n := rest
		for _, s := range shapes {
			n += each(s[0], s[1])
		}
		return alloc.Bytes(n)
	}
	for text, want := range map[string]alloc.Bytes{
		`{"quant_method": "fbgemm_fp8"}`: of(func(out, in int) int { return out*in + 4*out }),
		`{"quant_method": "eetq"}`:       of(func(out, in int) int { return out*in + 2*out }),
		`{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false}`:                                                 of(func(out, in int) int { return out*in/2 + in/128*(out/2+2*out) + 4*in }),
		`{"quant_method": "gptq", "bits": 8, "group_size": -1}`:                                                                     of(func(out, in int) int { return out*in + out + 2*out + 4*in }),
		`{"quant_method": "awq", "bits": 4, "group_size": 64}`:                                                                      of(func(out, in int) int { return out*in/2 + in/64*(out/2+2*out) }),
		`{"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"}`:                    of(func(out, in int) int { return out*in/2 + in/128*(out/2+2*out) }),
		`{"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 1, "nbits_per_codebook": 16}`:                                of(func(out, in int) int { return out*in/8*2 + 65536*8*2 + 2*out }),
		`{"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}`:                                                  of(func(out, in int) int { return out*in + 8 }),
		`{"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}`:                                                of(func(out, in int) int { return out*in/2 + out*in/16 + 8 }),
		`{"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"}}`: of(func(out, in int) int { return out*in/2 + out*in/16 + 8 }) + 8,
		`{"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "ignore": ["*.mlp.*"]}`: of(func(out, in int) int {
			if out*in >= 512*256 {
				return 2 * out * in
			}
			return out*in + (out+127)/128*(in/128)*4
		}),
		`{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"}, "model.layers.0.self_attn.k_proj": {"quant_algo": "NVFP4", "group_size": 16}}}`: of(
			func(out, in int) int { return 2 * out * in }) - 256*256 + 8 - 2*128*256 + 128*256/2 + 128*256/16 + 8,
		`{"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}, "exclude": ["lm_head"]}`: of(
			func(out, in int) int { return out*in/2 + out*in/32 }),
		`{"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": {"qscheme": "per_tensor", "is_dynamic": false}}}`: of(
			func(out, in int) int { return out*in + 8 }),
	} {
		r, err := quantizedConfig(t, base, json.RawMessage(text)).Report()
		require.NoError(t, err)
		assert.Equal(t, want, r.Params.Bytes, text)
	}

	dir := t.TempDir()
	text, err := json.Marshal(base)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hf_quant_config.json"), []byte(`{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}`), 0o600))
	c, err := checkpoint.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	assert.Equal(t, "FP8, float16 the rest", c.Published())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hf_quant_config.json"), []byte(`{`), 0o600))
	_, err = checkpoint.ReadFile(filepath.Join(dir, "config.json"))
	assert.ErrorContains(t, err, "hf_quant_config.json")
}
