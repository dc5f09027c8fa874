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

// measuredDenoiser is a model that makes images, as testdata/torch/diffusion.py measured it. Of a known one there
// are the parameters alone.
type measuredDenoiser struct {
	measuredFamily
	Text  int // tokens
	Known bool
}

// inputs are those that diffusion.py gives the model: of FLUX 64 places. An autoencoder is not trained, and has no Peak.
func (m measuredDenoiser) inputs(a architecture) estimate.Option {
	switch {
	case a.image != nil:
		return a.image.input(2, m.Text)
	case a.Family == estimate.PixArt:
		return a.denoiserInput(2, m.Text)
	}
	return estimate.All(estimate.InputShape(2, 64, a.Channels), estimate.InputShape(2, m.Text, a.Denoiser.TextDim))
}

// Models that make images have as many parameters as diffusers makes of their config.json, keep what PyTorch was
// measured to keep on the CPU, and their peaks lie in the printed bands.
func TestDenoisersAsPyTorchHasThem(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/diffusion.json")
	require.NoError(t, err)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &file))
	delete(file, "torch")
	delete(file, "diffusers")
	for name, text := range file {
		t.Run(name, func(t *testing.T) {
			var m measuredDenoiser
			require.NoError(t, json.Unmarshal(text, &m))
			c, err := Open(writeFile(t, configName, m.Config))
			require.NoError(t, err)
			if m.Known {
				input, err := c.Input(1, 0)
				require.NoError(t, err)
				r, err := c.Report(input)
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				return
			}
			require.NotEmpty(t, m.Kept)
			for dtype, kept := range m.Kept {
				d, err := alloc.ParseDType(dtype)
				require.NoError(t, err)
				r, err := c.Report(m.inputs(c.architecture), estimate.On(estimate.CPU), estimate.Train(estimate.Adam), estimate.Precision(d))
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				if m.Peak != nil {
					checkPeak(t, m.Peak[dtype], dtype, r, false)
				}
				if !assert.InEpsilon(t, float64(kept), float64(r.Kept), 0.003, "%s: measured %d, estimated %d", dtype, kept, r.Kept) {
					for _, row := range r.Layers {
						t.Logf("%-60s %8d %8d %v", row.Path, row.Params, row.Kept, row.Output)
					}
				}
			}
		})
	}
}
