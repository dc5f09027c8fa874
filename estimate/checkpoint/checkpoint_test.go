package checkpoint

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenFindsTheModelOfAFolder(t *testing.T) {
	one := string(byteTensors("w"))
	gguf := string(ggufBytes(nil, ggufTensor{"w", []uint64{1}, 24, 0}))
	for name, test := range map[string]struct {
		files      map[string]string
		want, fail string
	}{
		"one safetensors file":          {files: map[string]string{"diffusion_pytorch_model.safetensors": one, "README.md": ""}, want: "safetensors"},
		"safetensors before GGUF":       {files: map[string]string{"a.safetensors": one, "a.gguf": gguf}, want: "safetensors"},
		"one GGUF file":                 {files: map[string]string{"a.gguf": gguf}, want: "GGUF"},
		"two safetensors files":         {files: map[string]string{"a.safetensors": one, "b.safetensors": one}, fail: "holds 2 models, a.safetensors and b.safetensors among them"},
		"a GGUF file and its projector": {files: map[string]string{"a.gguf": gguf, "mmproj-a-f16.gguf": gguf}, want: "GGUF"},
		"two GGUF files":                {files: map[string]string{"a.gguf": gguf, "b.gguf": gguf}, fail: "holds 2 models, a.gguf and b.gguf among them"},
		"nothing":                       {files: map[string]string{"pytorch_model.bin": "PK"}, fail: "no safetensors file, no GGUF file and no config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ReadFile(writeFolder(t, test.files))
			if test.fail != "" {
				require.ErrorContains(t, err, test.fail)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, c.Format)
		})
	}
}

func TestOpenKnowsAFileByItsFirstBytes(t *testing.T) {
	// The cache of Hugging Face's hub names files by their hash.
	c, err := ReadFile(writeFile(t, "4b5c", byteTensors("w")))
	require.NoError(t, err)
	assert.Equal(t, "safetensors", c.Format)
	c, err = ReadFile(writeFile(t, "6d7e", ggufBytes(nil)))
	require.NoError(t, err)
	assert.Equal(t, "GGUF", c.Format)
	_, err = ReadFile(writeFile(t, "1a2b", []byte("PK\x03\x04 and so on")))
	assert.ErrorContains(t, err, "the end of the ZIP file is missing")
	_, err = ReadFile(writeFile(t, "empty", nil))
	assert.ErrorContains(t, err, "neither its name nor its first bytes")
	_, err = ReadFile(filepath.Join(t.TempDir(), "none.safetensors"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestBuffersGoByTheirNames(t *testing.T) {
	mask := tensorInfo{Name: "h.0.attn.bias", Shape: []int{1, 1, 1024, 1024}}
	assert.True(t, mask.isBuffer())
	bias := tensorInfo{Name: "h.0.attn.bias", Shape: []int{768}}
	assert.False(t, bias.isBuffer())
	for name, want := range map[string]bool{
		"embeddings.position_ids":                      true,
		"layer1.0.bn1.running_var":                     true,
		"num_batches_tracked":                          true,
		"h.0.attn.masked_bias":                         true,
		"model.layers.0.self_attn.rotary_emb.inv_freq": true,
		"inv_freq": false,
		"encoder.layer.0.attention.output.dense.bias":     false,
		"embeddings.position_embeddings.weight":           false,
		"model.layers.0.self_attn.k_proj.weight_inv_freq": false,
	} {
		assert.Equal(t, want, tensorInfo{Name: name}.isBuffer(), name)
	}
}

// Logits of masked tokens that are not tied have a bias beside their own in transformers 5, as many parameters as it counts.
// Files of other versions have it if its name is among the weights.
func TestIdleBiasesOfMaskedTokens(t *testing.T) {
	for name, c := range map[string]struct {
		tied, untied int64
		bias         string // in the files
	}{
		"Bert": {38020, 41320, "cls.predictions."}, "DebertaV2": {37956, 41256, "cls.predictions."},
	} {
		dir := t.TempDir()
		params := func(tied bool, version string) int64 {
			family := map[string]string{"Bert": "bert", "DebertaV2": "deberta-v2"}[name]
			config := fmt.Sprintf(`{"architectures": ["%sForMaskedLM"], "model_type": "%s", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
				"intermediate_size": 64, "tie_word_embeddings": %v, "transformers_version": "%s"}`, name, family, tied, version)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
			f, err := ReadFile(dir)
			require.NoError(t, err)
			r, err := f.Report()
			require.NoError(t, err)
			return r.Params.Count
		}
		assert.Equal(t, c.tied, params(true, "5.23.0"), name)
		assert.Equal(t, c.untied, params(false, "5.23.0"), name)
		assert.Equal(t, c.untied-100, params(false, "4.57.6"), name)
		header := `{"` + c.bias + `bias": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}, "` + c.bias + `decoder.bias": {"dtype": "F32", "shape": [100], "data_offsets": [400, 800]}}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), safetensorsFile(header, 800), 0o600))
		assert.Equal(t, c.untied, params(false, "4.57.6"), name)
	}
}

// The head of T5 and mT5 is the one that the weights have: transformers 5.23 writes that it is tied even where it is not, and
// loads these files with as many parameters. Without weights it is taken to be a head of its own.
func TestHeadsThatTheWeightsTell(t *testing.T) {
	const config = `{"architectures": ["%sForConditionalGeneration"], "model_type": "%s", "vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
		"num_heads": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": %v, %s "transformers_version": "%s"}`
	for _, c := range []struct {
		class, family string
		tied          bool
		scale         string
		version       string
		alone         int64 // parameters by the config.json alone
	}{
		{"MT5", "mt5", true, "", "5.23.0", 56192}, {"MT5", "mt5", false, "", "4.57.6", 56192}, {"MT5", "mt5", true, "", "4.57.6", 52992},
		{"T5", "t5", true, `"scale_decoder_outputs": false,`, "5.23.0", 56192}, {"T5", "t5", true, `"scale_decoder_outputs": true,`, "5.23.0", 52992},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, config, c.class, c.family, c.tied, c.scale, c.version), 0o600))
		params := func() int64 {
			f, err := ReadFile(dir)
			require.NoError(t, err)
			r, err := f.Report()
			require.NoError(t, err)
			return r.Params.Count
		}
		assert.Equal(t, c.alone, params(), "%+v", c)
		for tensor, want := range map[string]int64{"lm_head.weight": 56192, "shared.weight": 52992} {
			header := `{"` + tensor + `": {"dtype": "F32", "shape": [100, 32], "data_offsets": [0, 12800]}}`
			require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), safetensorsFile(header, 12800), 0o600))
			assert.Equal(t, want, params(), "%+v, %s", c, tensor)
		}
	}
}
