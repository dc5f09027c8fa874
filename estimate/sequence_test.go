package estimate_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// What PyTorch's DTensor was measured to keep (testdata/torch/sequence_parallel.py).
func TestSequenceParallelKeepsWhatDTensorKeeps(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/sequence_parallel.json")
	require.NoError(t, err)
	var measured struct {
		Devices, Batch, Length int
		Saved                  map[string]alloc.Bytes `json:"saved_bytes"`
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	for name, sharding := range map[string]estimate.Sharding{
		"tensor": {Tensor: measured.Devices}, "sequence": {Tensor: measured.Devices, Sequence: "kept"},
	} {
		r := model(t, layer.Public(tiny["llama-tiny"].Layers()), estimate.Tokens(measured.Batch, measured.Length), estimate.Precision(alloc.BFloat16),
			estimate.Train("none"), estimate.OnCPU(), sharding)
		assert.InEpsilon(t, float64(measured.Saved[name]), float64(r.Retained), 0.005, name)
	}
}

// Without sequence parallelism every device of a layer of GPT keeps 10 bytes of what the paper calls sbh, and with it a
// part of them (arXiv:2205.05198, equations 2 and 4: the inputs of norms and of the split layers, and the masks of
// dropouts), in 16 bits.
func TestSequenceParallelDividesWhatThePaperSays(t *testing.T) {
	const batch, length, devices = 2, 512, 4
	kept := func(blocks int, s estimate.Sharding) int64 {
		c := gpt2Small
		c.Blocks = blocks
		r := model(t, layer.Public(c.Layers()), estimate.Tokens(batch, length), estimate.Precision(alloc.BFloat16), estimate.Train("none"), estimate.Attends("eager"), s)
		return int64(r.Retained)
	}
	each := func(s estimate.Sharding) int64 { return kept(3, s) - kept(2, s) }
	sbh := int64(batch * length * 768)
	one, tensor, sequence := each(estimate.Sharding{}), each(estimate.Sharding{Tensor: devices}), each(estimate.Sharding{Tensor: devices, Sequence: "again"})
	statistics := int64(batch * length * 4 * 4) // mean and deviation of two norms
	assert.Equal(t, 10*sbh-10*sbh/devices+statistics-statistics/devices, tensor-sequence)
	assert.Equal(t, one/devices, sequence)
}

// A layer that gathers its input again keeps less, and a device needs less than without; what is read is the flag's name.
func TestSequenceParallelForms(t *testing.T) {
	c := tiny["llama-tiny"]
	train := func(s estimate.Sharding) *estimate.Report {
		return model(t, layer.Public(with(c.Layers(), layer.NextToken{})), estimate.Tokens(2, 512), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), s)
	}
	tensor, keeps, again := train(estimate.Sharding{Tensor: 2}), train(estimate.Sharding{Tensor: 2, Sequence: "kept"}), train(estimate.Sharding{Tensor: 2, Sequence: "again"})
	assert.Less(t, again.Retained, keeps.Retained)
	assert.Less(t, keeps.Retained, tensor.Retained)
	assert.Equal(t, tensor.Training.Weights, again.Training.Weights)
	assert.Equal(t, train(estimate.Sharding{}).Training, train(estimate.Sharding{Sequence: "again"}).Training, "nothing is split")
	mixture := tiny["mixtral-tiny"]
	each := func(s estimate.Sharding) alloc.Bytes {
		return model(t, layer.Public(mixture.Layers()), estimate.Tokens(2, 512), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), s).Retained
	}
	assert.Less(t, each(estimate.Sharding{Tensor: 2, Sequence: "again"}), each(estimate.Sharding{Tensor: 2}))
	_, err := estimate.Model(layer.Public(c.Layers()), estimate.Sharding{Tensor: 2, Sequence: "once"})
	assert.ErrorContains(t, err, `Sequence is "once": want one of kept, again`)
}
