package checkpoint

import (
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

func TestReportOfTensorsAlone(t *testing.T) {
	header := `{"conv.weight":{"dtype":"BF16","shape":[4,3,2,2],"data_offsets":[0,96]},
		"bn.weight":{"dtype":"F32","shape":[4],"data_offsets":[96,112]},
		"conv.bias":{"dtype":"BF16","shape":[4],"data_offsets":[112,120]},
		"bn.running_mean":{"dtype":"F32","shape":[4],"data_offsets":[120,136]},
		"scale":{"dtype":"F8_E8M0","shape":[3],"data_offsets":[136,139]}}`
	c, err := ReadFile(writeFile(t, "conv.safetensors", safetensorsFile(header, 139)))
	require.NoError(t, err)
	r, err := c.Report()
	require.NoError(t, err)
	assert.Empty(t, r.Inputs)
	assert.Equal(t, estimate.Amount{Count: 59, Bytes: 123}, r.Params)
	assert.Equal(t, estimate.Amount{Count: 4, Bytes: 16}, r.Buffers)
	assert.Equal(t, alloc.Bytes(123), r.Inference.Weights)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "no config.json beside the weights: no architecture")
	params := map[string]int64{}
	for _, row := range r.Layers {
		params[row.Path] += row.Params
	}
	assert.Equal(t, int64(52), params["conv"])
	assert.Equal(t, int64(4), params["bn"])

	_, err = c.Report(estimate.InputShape(1, 3, 8, 8))
	assert.ErrorContains(t, err, "only its tensors are known")
	_, err = c.Layers()
	assert.ErrorIs(t, err, ErrNoArchitecture)
	_, err = c.Cache(1, 1)
	assert.ErrorIs(t, err, ErrNoArchitecture)
}

func TestReportCountsQuantizedWeightsAsStored(t *testing.T) {
	keys := llamaKeys(map[string]any{"llama.embedding_length": uint32(256), "llama.block_count": uint32(1), "llama.feed_forward_length": uint32(256)})
	c, err := ReadFile(writeFile(t, "q4.gguf", quantizedGGUF(keys)))
	require.NoError(t, err)
	stored := alloc.Bytes((4+1536)*144 + 3*1024)
	require.Equal(t, stored, c.bytes())

	r, err := c.Report(estimate.Tokens(1, 8))
	require.NoError(t, err)
	assert.Equal(t, c.parameters(), r.Params.Count)
	assert.Equal(t, stored, r.Params.Bytes)
	assert.Equal(t, stored, r.Inference.Weights)
	half, err := c.Report(estimate.Tokens(1, 8), estimate.Precision(alloc.Float16))
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(2*c.parameters()), half.Inference.Weights)
	assert.Equal(t, half.Inference.Peak.Bytes-half.Inference.Weights, r.Inference.Peak.Bytes-r.Inference.Weights)
}

// quantizedGGUF is a block of 256 features in Q4_K, and what is given besides.
func quantizedGGUF(keys []ggufKey, more ...ggufTensor) []byte {
	var tensors []ggufTensor
	offset := uint64(0)
	add := func(name string, kind uint32, size uint64, dims ...uint64) {
		tensors = append(tensors, ggufTensor{name, dims, kind, offset})
		offset += size
	}
	const row = 144 // bytes of 256 elements of Q4_K
	add("token_embd.weight", 12, 4*row+(-4*row&31), 256, 4)
	for name, rows := range map[string]uint64{"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 256, "ffn_up": 256, "ffn_down": 256} {
		add("blk.0."+name+".weight", 12, rows*row, 256, rows)
	}
	for _, name := range []string{"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"} {
		add(name, 0, 1024, 256)
	}
	for _, t := range more {
		size := uint64(4)
		for _, n := range t.dims {
			size *= n
		}
		add(t.name, t.kind, size, t.dims...)
	}
	return ggufBytes(keys, tensors...)
}

// A tensor that is no weight of the layers does not change how the rest is counted.
func TestExtraTensorsAreCountedAsStored(t *testing.T) {
	keys := llamaKeys(map[string]any{"llama.embedding_length": uint32(256), "llama.block_count": uint32(1), "llama.feed_forward_length": uint32(256)})
	c, err := ReadFile(writeFile(t, "q4.gguf", quantizedGGUF(keys, ggufTensor{name: "rope_freqs.weight", dims: []uint64{64}})))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(1, 8))
	require.NoError(t, err)
	assert.Equal(t, c.bytes(), r.Inference.Weights)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "the files hold")
	assert.True(t, r.Fits(r.Needs()))
	assert.False(t, r.Fits(r.Needs()-1))
}

// The modules that hold the file's tensors are those of the layers, one by one.
func TestLayersHaveTheFilesNames(t *testing.T) {
	c, err := ReadFile(miniLM(t))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(2, 128))
	require.NoError(t, err)
	want := map[string]int64{}
	for _, tensor := range c.tensors {
		if !tensor.isBuffer() {
			want[tensor.Name[:strings.LastIndexByte(tensor.Name, '.')]] += tensor.Elements
		}
	}
	have := map[string]int64{}
	for _, row := range r.Layers {
		if row.Params > 0 {
			have[row.Path] += row.Params
		}
	}
	assert.Equal(t, want, have)
	assert.Equal(t, alloc.Shape{2, 384}, r.Output)
}

// float32Routers has the parameters that stay float32 in a model of another type: the weights of routers, layers x experts x
// width (torch.zeros(..., dtype=torch.float32) in modeling_deepseek_v3.py and its kin, transformers 5.24).
var float32Routers = map[string]int64{
	"deepseek-ai/DeepSeek-V2": 59 * 160 * 5120, "deepseek-ai/DeepSeek-V2-Lite": 26 * 64 * 2048,
	"deepseek-ai/DeepSeek-V3": 58 * 256 * 7168, "deepseek-ai/DeepSeek-R1": 58 * 256 * 7168, "zai-org/GLM-4.5-Air": 45 * 128 * 4096,
	"deepseek-ai/DeepSeek-V3.1": 58 * 256 * 7168, "moonshotai/Kimi-K2-Instruct": 60 * 384 * 7168, "moonshotai/Kimi-K2-Thinking": 60 * 384 * 7168,
	"zai-org/GLM-4.5-Air-FP8": 45 * 128 * 4096, "deepseek-ai/DeepSeek-V3.2": 58 * 256 * 7168, "zai-org/GLM-4.6": 89 * 160 * 5120,
	"zai-org/GLM-4.7-Flash": 46 * 64 * 2048,
}

func TestConfigsGiveLayersThatRun(t *testing.T) {
	for name, model := range publishedModels(t) {
		t.Run(name, func(t *testing.T) {
			c, err := ReadFile(writeFile(t, configName, model.Config))
			require.NoError(t, err)
			length := 16
			if c.architecture.SeesImages() || c.architecture.Family.OrLlama().Usual > 0 {
				length = 0
			}
			input, err := c.Input(1, length)
			require.NoError(t, err)
			r, err := c.Report(input, estimate.Precision(alloc.BFloat16))
			require.NoError(t, err)
			assert.Equal(t, alloc.Bytes(2*model.Params+2*float32Routers[name]), r.Inference.Weights)
			assert.Greater(t, r.Inference.Peak.Bytes, r.Inference.Weights)
			assert.LessOrEqual(t, r.Inference.Weights, r.Inference.Footprint.Allocated.Lower, "the weights are there, whatever runs")
			assert.Positive(t, r.Retained)
		})
	}
}

// Weights of four bits packed in bytes, with a config.json that says so.
func TestReportCountsPackedWeightsAsStored(t *testing.T) {
	config := strings.Replace(llamaConfig, "{", `{"quantization_config": {"quant_method": "mxfp4"}, `, 1)
	header := `{"model.layers.0.mlp.up_proj.blocks":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}`
	c, err := ReadFile(writeFolder(t, map[string]string{configName: config, "model.safetensors": string(safetensorsFile(header, 1000))}))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(1, 8))
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(1000), r.Inference.Weights)
	alone, err := ReadFile(writeFile(t, configName, []byte(config)))
	require.NoError(t, err)
	r, err = alone.Report()
	require.NoError(t, err)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "the weights are quantized (mxfp4)")
	assert.Equal(t, alloc.Bytes(2*r.Params.Count), r.Params.Bytes, "a model without experts")
}

// A config.json alone tells how large quantized weights are. Llama 2 7B in four bits with
// groups of 128 is 3.9 GB on huggingface.co (TheBloke/Llama-2-7B-GPTQ, -AWQ), and in 8 bits of
// floating point 6.9.
func TestQuantizedConfigs(t *testing.T) {
	const llama = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
		"num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "float16", "quantization_config": `
	for settings, gigabytes := range map[string]float64{
		`{"quant_method": "gptq", "bits": 4, "group_size": 128}`:   3.89,
		`{"quant_method": "awq", "w_bit": 4, "q_group_size": 128}`: 3.89,
		`{"quant_method": "fp8"}`:                                  7.0,
		`{"quant_method": "bitsandbytes", "load_in_4bit": true}`:   4.17,
	} {
		c, err := ReadFile(writeFile(t, configName, []byte(llama+settings+"}")))
		require.NoError(t, err)
		r, err := c.Report(estimate.Tokens(1, 8))
		require.NoError(t, err)
		assert.InDelta(t, gigabytes, float64(r.Inference.Weights)/1e9, 0.05, settings)
		assert.True(t, r.Fits(10*alloc.GiB), settings)
	}
	c, err := ReadFile(writeFile(t, configName, []byte(llama+`{"quant_method": "new"}}`)))
	require.NoError(t, err)
	r, err := c.Report()
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(2*r.Params.Count), r.Inference.Weights)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "counted as if they were not")
}

// Of a family that is not known there are the weights as they are stored, and a cache by the
// numbers that nearly all have.
func TestUnknownFamiliesHaveACache(t *testing.T) {
	config := strings.Replace(llamaConfig, `"llama"`, `"rwkv9"`, 1)
	header := `{"w":{"dtype":"BF16","shape":[500],"data_offsets":[0,1000]}}`
	c, err := ReadFile(writeFolder(t, map[string]string{configName: config, "model.safetensors": string(safetensorsFile(header, 1000))}))
	require.NoError(t, err)
	_, err = c.Layers()
	require.ErrorIs(t, err, ErrUnknownArchitecture)
	cache, err := c.Cache(3, 100)
	require.NoError(t, err)
	n, err := estimate.KVCache(cache)
	require.NoError(t, err)
	assert.EqualValues(t, 2*2*3*100*2*16*2, n)
	r, err := c.Report(cache)
	require.NoError(t, err)
	assert.Equal(t, 1000+n, r.Inference.Peak.Bytes)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "by the config's own numbers of layers")

	c, err = ReadFile(writeFile(t, configName, []byte(`{"model_type": "new", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
		"num_kv_shared_layers": 2, "sliding_window": 10, "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
		"sliding_attention", "sliding_attention", "full_attention"]}`)))
	require.NoError(t, err)
	cache, err = c.Cache(3, 100)
	require.NoError(t, err)
	n, err = estimate.KVCache(cache)
	require.NoError(t, err)
	assert.EqualValues(t, 2*3*2*16*2*(100+3*10), n, "the last two layers have none of their own")

	keys := append(llamaKeys(map[string]any{"general.architecture": "new"}), ggufKey{"new.embedding_length", uint32(256)},
		ggufKey{"new.block_count", uint32(2)}, ggufKey{"new.attention.head_count", uint32(8)}, ggufKey{"new.attention.head_count_kv", uint32(2)},
		ggufKey{"new.attention.shared_kv_layers", uint32(1)})
	g, err := ReadFile(writeFile(t, "new.gguf", quantizedGGUF(keys)))
	require.NoError(t, err)
	cache, err = g.Cache(1, 10)
	require.NoError(t, err)
	assert.Equal(t, 32, cache.HeadSize)
	assert.Equal(t, 2, cache.KVHeads)
	assert.Equal(t, 1, cache.Layers)
}

func TestNameOfAModel(t *testing.T) {
	for path, want := range map[string]string{
		"/m/Qwen3-8B": "Qwen3-8B", "/m/Qwen3-8B/config.json": "Qwen3-8B", "/m/Qwen3-8B/model.safetensors": "Qwen3-8B",
		"/m/Qwen3-8B/model.safetensors.index.json": "Qwen3-8B", "/m/qwen3-8b-q4.gguf": "qwen3-8b-q4", "/m/net.safetensors": "net",
	} {
		assert.Equal(t, want, nameOf(path), path)
	}
}

func TestInputOfAModel(t *testing.T) {
	shape := func(model string, batch, length int) alloc.Shape {
		c, err := ReadFile(writeFile(t, configName, publishedModels(t)[model].Config))
		require.NoError(t, err)
		input, err := c.Input(batch, length)
		require.NoError(t, err)
		r, err := c.Report(input)
		require.NoError(t, err)
		return r.Inputs[0]
	}
	assert.Equal(t, alloc.Shape{2, 2048}, shape("Qwen/Qwen3-0.6B", 2, 0))
	assert.Equal(t, alloc.Shape{2, 100}, shape("openai-community/gpt2", 2, 100))
	assert.Equal(t, alloc.Shape{3, 3, 224, 224}, shape("google/vit-base-patch16-224-in21k", 3, 0))
	short, err := ReadFile(writeFile(t, configName, []byte(`{"model_type":"gpt2","n_embd":8,"n_layer":1,"n_head":2,"n_positions":4,"vocab_size":16}`)))
	require.NoError(t, err)
	input, err := short.Input(1, 0)
	require.NoError(t, err)
	r, err := short.Report(input)
	require.NoError(t, err)
	assert.Equal(t, alloc.Shape{1, 4}, r.Inputs[0])
	vit, err := ReadFile(writeFile(t, configName, publishedModels(t)["google/vit-base-patch16-224-in21k"].Config))
	require.NoError(t, err)
	_, err = vit.Input(1, 5)
	assert.ErrorContains(t, err, "a vit model reads images")
}

// A model of images and text: the tower is counted, in the rows too, and not run.
func TestVisionTowerIsHeld(t *testing.T) {
	model := publishedModels(t)["google/gemma-3-4b-it"]
	c, err := ReadFile(writeFile(t, configName, model.Config))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(1, 64), estimate.Train("adam"))
	require.NoError(t, err)
	var rows int64
	for _, row := range r.Layers {
		rows += row.Params
	}
	assert.Equal(t, model.Params, rows)
	assert.Equal(t, []string{estimate.MissingTower}, r.Missing)
}

// Adapters of weights that a config.json says are quantized train on them as they are.
func TestTrainingOfQuantizedConfigs(t *testing.T) {
	trained := func(quantization string, base string) *estimate.Report {
		config := strings.Replace(llamaConfig, "{", `{"quantization_config": `+quantization+`, `, 1)
		c, err := ReadFile(writeFile(t, "config.json", []byte(config)))
		require.NoError(t, err)
		input, err := c.Input(1, 16)
		require.NoError(t, err)
		opts := []estimate.Option{input, estimate.Train("adamw"), estimate.LoRA{Rank: 4, Targets: []string{"q_proj"}}}
		if base != "" {
			opts = append(opts, estimate.Quantized{Base: base})
		}
		r, err := c.Report(opts...)
		require.NoError(t, err)
		return r
	}
	whole := trained(`null`, "").Training
	for quantization, base := range map[string]string{
		`{"quant_method": "bitsandbytes", "load_in_4bit": true}`:                                    "nf4",
		`{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_use_double_quant": true}`: "nf4-double",
		`{"quant_method": "bitsandbytes", "load_in_8bit": true}`:                                    "int8",
		`{"quant_method": "gptq", "bits": 4, "group_size": 128}`:                                    "gptq",
		`{"quant_method": "fp8"}`: "",
	} {
		got := trained(quantization, "").Training
		assert.Equal(t, trained(`null`, base).Training, got, quantization)
		if base != "" {
			assert.Less(t, got.Weights, whole.Weights)
		}
	}
}

// The context of a model is the same by each of its files, and the usual input is no longer than that.
func TestContextOfAModel(t *testing.T) {
	const config = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
		"intermediate_size": 96, "vocab_size": 4, "tie_word_embeddings": false, "max_position_embeddings": %d}`
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, configName), fmt.Appendf(nil, config, 128), 0o600))
	for path, want := range map[string][2]int{
		writeFile(t, "small.gguf", llamaGGUF()):                 {128, 128},
		writeFile(t, configName, fmt.Appendf(nil, config, 128)): {128, 128},
		folder: {128, 128},
		writeFile(t, "long.json", fmt.Appendf(nil, config, 1<<20)): {1 << 20, 2048},
		writeFile(t, "alibi.json", []byte(`{"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 4}`)): {2048, 2048},
		writeFile(t, "seen.json", []byte(llavaConfig)): {2048, 2048},
		writeFile(t, "inner.json", []byte(`{"model_type": "of_others", "text_config": {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 4, "max_position_embeddings": 640}}`)): {640, 0},
	} {
		c, err := ReadFile(path)
		require.NoError(t, err, path)
		cache, err := c.Cache(1, 0)
		require.NoError(t, err, path)
		assert.Equal(t, want[0], cache.ContextLength, path)
		if want[1] == 0 {
			continue
		}
		input, err := c.Input(1, 0)
		require.NoError(t, err, path)
		r, err := c.Report(input)
		require.NoError(t, err, path)
		assert.Equal(t, want[1], r.Inputs[0][1], path)
	}
}
