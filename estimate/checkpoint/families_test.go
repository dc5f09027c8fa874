package checkpoint

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// measuredFamily is a small model of a family, as testdata/torch/families.py measured it.
type measuredFamily struct {
	Config json.RawMessage
	Length int // of the texts, of which there are two
	Params int64
	Kept   map[string]alloc.Bytes // by element type
}

// Small models of the families have as many parameters as transformers makes of their config.json, and
// keep for the backward pass what PyTorch was measured to keep on the CPU.
func TestFamiliesAsPyTorchHasThem(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/families.json")
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
			c, err := Open(writeFile(t, configName, m.Config))
			require.NoError(t, err)
			for dtype, kept := range m.Kept {
				d, err := alloc.ParseDType(dtype)
				require.NoError(t, err)
				length := m.Length
				if c.architecture.seesImages() {
					length = 0
				}
				input, err := c.Input(2, length)
				require.NoError(t, err)
				r, err := c.Report(input, estimate.On(estimate.CPU), estimate.Train(estimate.Adam), estimate.Precision(d))
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				t.Logf("%s %s: %+.4f", name, dtype, float64(kept)/float64(r.Kept)-1)
				if !assert.InEpsilon(t, float64(kept), float64(r.Kept), 0.01, "%s: measured %d, estimated %d", dtype, kept, r.Kept) {
					for _, row := range r.Layers {
						t.Logf("%-60s %8d %8d %v", row.Path, row.Params, row.Kept, row.Output)
					}
				}
			}
		})
	}
}
