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
	Peak   map[string]alloc.Bytes // of a training step, beyond what was there before it
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
				checkPeak(t, m.Peak[dtype], r, d, c.architecture)
				within := 0.003
				if c.architecture.Delta != nil { // the chunks' copies
					within = 0.007
				}
				if !assert.InEpsilon(t, float64(kept), float64(r.Kept), within, "%s: measured %d, estimated %d", dtype, kept, r.Kept) {
					for _, row := range r.Layers {
						t.Logf("%-60s %8d %8d %v", row.Path, row.Params, row.Kept, row.Output)
					}
				}
			}
		})
	}
}

// checkPeak holds the peak of a training step to what PyTorch was measured to need on the CPU. In models so small
// PyTorch's own workspaces count for much: in bfloat16, where it reorders weights, and in convolutions more than
// the tensors do, so that these are left out.
func checkPeak(t *testing.T, measured alloc.Bytes, r *estimate.Report, d alloc.DType, a architecture) {
	images := a.seesImages() || a.Family == estimate.CLIP || a.Family == estimate.SigLIP
	if d != alloc.Float32 || images {
		return
	}
	at := r.Training
	beyond := at.Peak - at.Weights - at.Buffers - at.Optimizer - at.Input
	off := float64(measured)/float64(beyond) - 1
	assert.Less(t, off, 0.10, "measured %d, estimated %d", measured, beyond)
	assert.Greater(t, off, -0.13, "measured %d, estimated %d", measured, beyond)
}
