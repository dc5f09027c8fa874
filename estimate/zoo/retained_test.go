package zoo_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/seq2seq"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// examples are models that the zoo does not have.
var examples = map[string]func() []tape.Layer{"t5-small": t5Small, "unet-cifar10": unet}

// Parameters, buffers, and what autograd keeps are PyTorch's (testdata/models.py).
func TestRetainedBytes(t *testing.T) {
	data, err := os.ReadFile("testdata/models.json")
	require.NoError(t, err)
	var measured struct {
		Models map[string]struct {
			Inputs  [][]int
			Output  []int
			Params  int64
			Buffers alloc.Bytes `json:"buffer_bytes"`
			Saved   alloc.Bytes `json:"saved_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	require.NotEmpty(t, measured.Models)
	for name, want := range measured.Models {
		t.Run(name, func(t *testing.T) {
			var layers []nn.Layer
			if build, ok := examples[name]; ok {
				layers = layer.Public(build())
			} else {
				m, err := zoo.ByName(name)
				require.NoError(t, err)
				layers = m.Layers
			}
			opts := []estimate.Option{estimate.OnCPU()}
			for _, in := range want.Inputs {
				if len(in) > 2 {
					opts = append(opts, estimate.InputShape(in...))
				} else {
					opts = append(opts, family.Given([]family.Input{{DType: alloc.Int64, Shape: in}}))
				}
			}
			r, err := estimate.Model(layers, opts...)
			require.NoError(t, err)
			assert.Equal(t, want.Params, r.Params.Count)
			assert.Equal(t, want.Buffers, r.Buffers.Bytes)
			assert.Equal(t, alloc.Shape(want.Output), r.Output)
			if name == "unet-cifar10" { // some of its tensors are in the order of the pixels, and copied
				assert.InEpsilon(t, float64(want.Saved), float64(r.Retained), 0.012)
			} else {
				assert.Equal(t, want.Saved, r.Retained)
			}
		})
	}
}

// T5-small as an example writes it is T5-small as the family builds it.
func TestExampleIsTheFamily(t *testing.T) {
	family := family.Transformer{Family: seq2seq.T5, Vocab: 32128, Hidden: 512, Heads: 8, HeadSize: 64, FFN: 2048, Blocks: 6, Attention: family.Attention{Buckets: 32}, Dropout: 0.1, Tied: true}
	of := func(layers []tape.Layer) *estimate.Report {
		r, err := estimate.Model(layer.Public(layers), estimate.Tokens(2, 64), estimate.Tokens(2, 32), estimate.Train("adamw"), estimate.OnCPU())
		require.NoError(t, err)
		return r
	}
	want, got := of(family.Layers()), of(t5Small())
	assert.Equal(t, want.Params, got.Params)
	assert.Equal(t, want.FLOPs, got.FLOPs)
	assert.Equal(t, want.Retained, got.Retained)
	assert.Equal(t, want.Inference.Peak.Bytes, got.Inference.Peak.Bytes)
	assert.Equal(t, want.Training.Peak.Bytes, got.Training.Peak.Bytes)
}
