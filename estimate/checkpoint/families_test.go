package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// measuredFamily is a small model of a family, as testdata/torch/families.py measured it.
type measuredFamily struct {
	Config json.RawMessage
	Length int // of the texts, of which there are two
	Images int // in each text
	Size   [2]int

	Sounds  int // in each text
	Seconds float64

	Labels bool // the model was given labels, and computed its loss

	Checkpointed string // the pattern of the blocks that the model checkpoints

	Params int64
	Kept   map[string]alloc.Bytes // by element type
	Peak   map[string]alloc.Bytes // of a training step, beyond what was there before it
}

// prompted returns the model with the images and sounds that were measured.
func (m measuredFamily) prompted(t *testing.T, c *File) *File {
	if m.Images+m.Sounds == 0 {
		return c
	}
	c, err := c.Prompted(InPrompt{Images: m.Images, Width: m.Size[0], Height: m.Size[1], Sounds: m.Sounds, Seconds: m.Seconds})
	require.NoError(t, err)
	return c
}

// Models of the families have as many parameters as transformers makes of their config.json, keep for
// the backward pass what PyTorch was measured to keep on the CPU, and their peaks lie within the printed bounds.
func TestFamiliesAsPyTorchHasThem(t *testing.T) {
	for _, file := range familyFiles(t) {
		testFamilies(t, file)
	}
}

// So do models of ordinary sizes, in which workspaces count for little.
func TestFamiliesOfOrdinarySizes(t *testing.T) { testFamilies(t, "testdata/torch/ordinary.json") }

// familyFiles returns the paths of families.json and of its companions, families_GROUP.json.
func familyFiles(t *testing.T) []string {
	files, err := filepath.Glob("testdata/torch/families*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func testFamilies(t *testing.T, name string) {
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &file))
	delete(file, "torch")
	delete(file, "transformers")
	for name, text := range file {
		t.Run(name, func(t *testing.T) {
			var m measuredFamily
			require.NoError(t, json.Unmarshal(text, &m))
			require.NotEmpty(t, m.Kept)
			c, err := ReadFile(writeFile(t, configName, m.Config))
			require.NoError(t, err)
			c = m.prompted(t, c)
			for dtype, kept := range m.Kept {
				d, err := alloc.ParseDType(dtype)
				require.NoError(t, err)
				length := m.Length
				if c.architecture.SeesImages() {
					length = 0
				}
				input, err := c.Input(2, length)
				require.NoError(t, err)
				trained := []estimate.Option{input, estimate.OnCPU(), estimate.Train("adam"), estimate.Precision(d)}
				if m.Labels {
					require.NotNil(t, c.Loss())
					trained = append(trained, estimate.WithLoss(c.Loss()))
				}
				if m.Checkpointed != "" {
					trained = append(trained, estimate.Checkpointed(m.Checkpointed))
				}
				r, err := c.Report(trained...)
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				if peak, ok := m.Peak[dtype]; ok {
					checkPeak(t, peak, dtype, r)
				}
				within := 0.003
				if family.Own[layer.DeltaNet](c.architecture.Transformer) != nil { // the chunks' copies
					within = 0.007
				}
				if !assert.InEpsilon(t, float64(kept), float64(r.Retained), within, "%s: measured %d, estimated %d", dtype, kept, r.Retained) {
					for _, row := range r.Layers {
						t.Logf("%-60s %8d %8d %v", row.Path, row.Params, row.Retained, row.Output)
					}
				}
			}
		})
	}
}

// checkPeak checks the peak of a training step on the CPU against the bounds that the report prints. What the profiler
// does not see is what was there before the step.
func checkPeak(t *testing.T, measured alloc.Bytes, dtype string, r *estimate.Report) {
	at := r.Training
	peak := measured + at.Weights + at.Buffers + at.Optimizer + at.Input
	assert.LessOrEqual(t, peak, at.Peak.Upper, "%s: the upper bound of %v", dtype, at.Peak.Bytes)
	assert.GreaterOrEqual(t, peak, at.Peak.Lower, "%s: the lower bound of %v", dtype, at.Peak.Bytes)
}

// Every family that is read is checked against what transformers makes of it: to a number of parameters or to a measurement. Of
// ChatGLM and the families of diffusers other tests do.
func TestEveryFamilyIsHeld(t *testing.T) {
	held := map[string]bool{"chatglm": true}
	for _, file := range append(familyFiles(t), "testdata/torch/ordinary.json", "../zoo/models.json", "../zoo/testdata/others.json") {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var models map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &models))
		for _, text := range models {
			var model struct {
				Config struct {
					Type string `json:"model_type"`
					Text struct {
						Type string `json:"model_type"`
					} `json:"text_config"`
				}
			}
			if json.Unmarshal(text, &model) == nil { // and not a version
				held[model.Config.Type], held[model.Config.Text.Type] = true, true
			}
		}
	}
	for _, name := range Families() {
		assert.True(t, held[name] || strings.ToLower(name) != name, "%s: add a small model to testdata/torch/families.json and run families.py", name)
	}
}

// DeBERTa v2 has a convolution beside its first block, and heads of its own: counted by hand from modeling_deberta_v2.py.
func TestDeBERTaHasMoreThanPublished(t *testing.T) {
	const settings = `"model_type": "deberta-v2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "hidden_act": "gelu",
		"relative_attention": true, "norm_rel_ebd": "none", "max_position_embeddings": 32, "num_labels": 3`
	const square, norm = 64*64 + 64, 2 * 64
	const block = 4*square + norm + 64*128 + 128 + 128*64 + 64 + norm
	for config, want := range map[string]int64{
		`"architectures": ["DebertaV2Model"], "position_biased_input": false, "share_att_key": true, "pos_att_type": "c2p|p2c"`:                                        100*64 + norm + 2*block + 64*64,
		`"architectures": ["DebertaV2Model"], "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "type_vocab_size": 2`:                                             (100+32+2)*64 + norm + 2*(block+2*square) + 16*64,
		`"architectures": ["DebertaV2ForSequenceClassification"], "position_biased_input": false, "share_att_key": true, "pos_att_type": "p2c", "conv_kernel_size": 3`: 100*64 + norm + 2*block + 64*64 + 3*64*64 + 64 + norm + square + 3*64 + 3,
		`"architectures": ["DebertaV2ForTokenClassification"], "position_biased_input": false, "pos_att_type": "c2p"`:                                                  100*64 + norm + 2*(block+square) + 64*64 + 3*64 + 3,
		`"architectures": ["DebertaV2ForMaskedLM"], "position_biased_input": false, "share_att_key": true`:                                                             100*64 + norm + 2*block + 64*64 + square + norm + 100,
	} {
		c, err := ReadFile(writeFile(t, configName, []byte("{"+settings+", "+config+"}")))
		require.NoError(t, err, config)
		r, err := c.Report(estimate.Tokens(2, 16), estimate.Train("adamw"))
		require.NoError(t, err, config)
		assert.Equal(t, want, r.Params.Count, config)
		assert.Positive(t, r.Training.Peak.Bytes)
	}
}

// Blocks of Gemma 4 with and without a window keep heads of different sizes, and those that borrow keep none. Mixers keep states of one size, in float32.
func TestCachesOfUnequalBlocks(t *testing.T) {
	const sizes = `"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4, `
	for config, want := range map[string]int64{ // elements of two sequences of 64 tokens
		`"model_type": "gemma4_text", "num_hidden_layers": 5, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 48, "sliding_window": 16, "hidden_size_per_layer_input": 0,
			"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]`: 2 * 2 * (2*16*16 + 64*48),
		`"model_type": "granitemoehybrid", "num_hidden_layers": 3, "num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mamba"],
			"mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4`: 2 * (2*64*2*16 + 2*(2*128*16+4*(128+2*16))),
		`"model_type": "mllama", "text_config": {"model_type": "mllama_text_model", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
			"num_hidden_layers": 5, "cross_attention_layers": [1, 3]}, "vision_config": {"image_size": 56, "hidden_size": 32, "attention_heads": 2}`: 3 * 2 * 2 * 64 * 2 * 16, // without images the layers that attend to them keep nothing
		`"model_type": "mamba2", "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 16, "conv_kernel": 4`: 2 * 2 * (2*128*16 + 4*(128+2*16)),
	} {
		c, err := ReadFile(writeFile(t, configName, []byte("{"+sizes+config+"}")))
		require.NoError(t, err, config)
		cache, err := c.Cache(2, 64)
		require.NoError(t, err, config)
		size, err := estimate.KVCache(cache)
		require.NoError(t, err, config)
		assert.EqualValues(t, 2*want, size, config) // of float16
	}
}
