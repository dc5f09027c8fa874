package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// LoRA trains as many parameters as PEFT does, of its default targets and of all linear layers (testdata/torch/lora.py).
func TestLoRATrainsWhatPEFTTrains(t *testing.T) {
	var file map[string]json.RawMessage
	data, err := os.ReadFile("testdata/torch/lora.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &file))
	var rank int
	require.NoError(t, json.Unmarshal(file["rank"], &rank))
	delete(file, "peft")
	delete(file, "transformers")
	delete(file, "rank")
	require.Greater(t, len(file), 100)
	configs := map[string]map[string]json.RawMessage{}
	for at, text := range file {
		t.Run(at, func(t *testing.T) {
			var want struct{ Default, All *int64 }
			require.NoError(t, json.Unmarshal(text, &want))
			name, model, _ := strings.Cut(at, " ")
			c, err := ReadFile(writeFile(t, configName, configOf(t, configs, name, model)))
			require.NoError(t, err)
			targets, _ := c.LoRATargets()
			assert.Equal(t, want.Default != nil, targets != nil, "%v", targets)
			if want.Default != nil && targets != nil {
				assert.Equal(t, *want.Default, trainedByLoRA(t, c, rank, targets), "default")
			}
			if want.All != nil {
				assert.Equal(t, *want.All, trainedByLoRA(t, c, rank, []string{"all-linear"}), "all-linear")
			}
		})
	}
}

// Adapters of experts make a sum as large as the experts' weights in each forward pass, which is kept. Measured on the CPU, as
// families.py measures, without a loss and with one.
func TestAdaptersOfExpertsKeepTheSum(t *testing.T) {
	c, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 128, "intermediate_size": 320,
		"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 1000}`)))
	require.NoError(t, err)
	input, err := c.Input(2, 32)
	require.NoError(t, err)
	for dtype, measured := range map[alloc.DType][2]alloc.Bytes{alloc.Float32: {8958256, 10032304}, alloc.BFloat16: {5328176, 6224304}} {
		adapt := []estimate.Option{input, estimate.OnCPU(), estimate.Train("adam"), estimate.Precision(dtype), estimate.LoRA{Rank: 8, Targets: []string{"all-linear"}}}
		r, err := c.Report(adapt...)
		require.NoError(t, err)
		assert.InEpsilon(t, int64(measured[0]), int64(r.Retained), 0.01, "kept, %v", dtype)
		r, err = c.Report(append(adapt, estimate.WithLoss(c.Loss()))...)
		require.NoError(t, err)
		at := r.Training
		assert.InEpsilon(t, int64(measured[1]), int64(at.Peak.Bytes-at.Weights-at.Buffers-at.Optimizer-at.Input), 0.02, "peak, %v", dtype)
		assert.EqualValues(t, 213600, r.Trained.Count)
	}
}

func trainedByLoRA(t *testing.T, c *File, rank int, targets []string) int64 {
	r, err := c.Report(estimate.LoRA{Rank: rank, Targets: targets})
	require.NoError(t, err)
	return r.Trained.Count
}

// configOf returns the config.json of a model in one of the files of models.
func configOf(t *testing.T, files map[string]map[string]json.RawMessage, name, model string) json.RawMessage {
	if files[name] == nil {
		folder := map[string]string{"models.json": "../zoo", "others.json": "../zoo/testdata"}[name]
		if folder == "" {
			folder = "testdata/torch"
		}
		data, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		var all map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &all))
		files[name] = all
	}
	var of struct{ Config json.RawMessage }
	require.NoError(t, json.Unmarshal(files[name][model], &of))
	return of.Config
}

// Libraries that quantize leave experts wide whose parameters get adapters.
func TestAdaptersOfExpertsOfAQuantizedBase(t *testing.T) {
	c, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 128, "intermediate_size": 320,
		"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 1000}`)))
	require.NoError(t, err)
	input, err := c.Input(2, 32)
	require.NoError(t, err)
	held := func(target string, more ...estimate.Option) alloc.Bytes {
		r, err := c.Report(append(more, input, estimate.Train("adam"), estimate.Precision(alloc.BFloat16), estimate.LoRA{Rank: 8, Targets: []string{target}})...)
		require.NoError(t, err)
		return r.Training.Weights + r.Training.Buffers
	}
	const attention = 3 * (2*128*128 + 2*128*32)
	for _, target := range []string{"all-linear", "w2"} {
		for base, bytes := range map[string]alloc.Bytes{"nf4": attention/2 + attention/64*4, "int8": attention + 3*(2*128+2*32)*4} {
			assert.Equal(t, 2*attention-bytes, held(target)-held(target, estimate.Quantized{Base: base}), "%s of %s", base, target)
		}
	}
}

// PEFT reads the last part of a target alone where transformers has fused the experts, and whole paths before that.
func TestAdaptersOfASharedExpert(t *testing.T) {
	c, err := ReadFile(writeFile(t, configName, []byte(`{"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 128, "intermediate_size": 320,
		"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
		"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
		"shared_expert_intermediate_size": 96, "vocab_size": 1000}`)))
	require.NoError(t, err)
	input, err := c.Input(2, 32)
	require.NoError(t, err)
	lora := estimate.LoRA{Rank: 8, Targets: []string{"shared_expert.up_proj"}}
	_, err = c.Report(input, estimate.Train("adam"), lora)
	assert.ErrorContains(t, err, "PEFT adapts gate_up_proj of this model as one parameter")
	r, err := c.Report(input, estimate.Train("adam"), lora, estimate.Installed("transformers==4.57"))
	require.NoError(t, err)
	assert.EqualValues(t, 3*8*(128+96), r.Trained.Count)
}
