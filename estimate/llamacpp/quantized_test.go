package llamacpp_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// The sizes of files that llama.cpp's own quantizer makes (testdata/quantized.py), to the byte.
func TestQuantizer(t *testing.T) {
	text, err := os.ReadFile("testdata/quantized.json")
	require.NoError(t, err)
	var file struct {
		Models map[string]map[llamacpp.Quantization]alloc.Bytes
	}
	require.NoError(t, json.Unmarshal(text, &file))
	assert.Greater(t, len(file.Models), 50)
	for repository, sizes := range file.Models {
		m, err := zoo.ByName(repository)
		require.NoError(t, err)
		for q, want := range sizes {
			stored, err := q.Stored(m.Layers)
			require.NoError(t, err)
			var c setting.Config
			stored.Apply(&c)
			assert.Equal(t, want, c.Stored.Bytes, "%s %s: %+.3f %%", m.Name, q, 100*(float64(c.Stored.Bytes)/float64(want)-1))
		}
	}
}

func TestQuantizationNamed(t *testing.T) {
	for name, want := range map[string]llamacpp.Quantization{"q4_k_m": "Q4_K_M", "Q4_K": "Q4_K_M", "iq4_xs": "IQ4_XS", "mxfp4": "MXFP4_MOE", "q8_0": "Q8_0", "bf16": "BF16"} {
		got, err := llamacpp.QuantizationNamed(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := llamacpp.QuantizationNamed("q4")
	assert.ErrorContains(t, err, "Q4_K_M")
}
