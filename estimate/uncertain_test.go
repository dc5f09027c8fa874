package estimate_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// Weights, keys and values and the states of an optimizer are exact: more of them leave the bounds as wide as they were.
func TestWhatIsExactIsNotWidened(t *testing.T) {
	width := func(r *estimate.Report) alloc.Bytes {
		n := r.Memory().Footprint.Needed
		return n.Upper - n.Bytes
	}
	served := func(batch int) *estimate.Report {
		cache := estimate.KVConfig(llama7b.Cache(batch, 4096, alloc.BFloat16))
		cache.Static = true // nothing is appended
		return model(t, layer.Public(llama7b.Layers()), estimate.Tokens(1, 64), estimate.Precision(alloc.BFloat16), cache, lazyAmpere)
	}
	few, many := served(1), served(32)
	assert.Greater(t, many.Inference.Cache, 60*alloc.GiB)
	assert.LessOrEqual(t, width(many), width(few)+64*alloc.MiB)
	assert.Less(t, float64(many.Needs()), 1.02*float64(many.Inference.Footprint.Needed.Bytes))
	trained := func(optimizer string) *estimate.Report {
		return model(t, layer.Public(llama7b.Layers()), estimate.Tokens(1, 4096), estimate.Precision(alloc.BFloat16), estimate.Train(optimizer), lazyAmpere,
			estimate.Loop{ZeroGrad: "first", Output: "dropped", Form: "fused"})
	}
	sgd, adam := trained("sgd"), trained("adam")
	assert.Greater(t, adam.Training.Optimizer, 20*alloc.GiB)
	// What is reserved for the states may be cut up, half of which a small device has to hold.
	assert.LessOrEqual(t, float64(width(adam)), float64(width(sgd))+0.06*float64(adam.Training.Optimizer))
}

// Where a part is missing there is no upper bound, and nothing is known to fit; null in JSON.
func TestMissingParts(t *testing.T) {
	r := model(t, layer.Public(gpt2Small.Layers()), estimate.Tokens(1, 64), estimate.Missing("the autoencoder"))
	assert.Equal(t, []string{"the autoencoder"}, r.Missing)
	assert.Equal(t, estimate.Unbounded, r.Needs())
	assert.False(t, r.Fits(1<<50))
	f := r.Inference.Footprint
	assert.Equal(t, f.Context.Upper, 1833*alloc.MiB, "the context is what it is")
	assert.Positive(t, f.Needed.Lower)
	assert.Contains(t, f.Needed.String(), "or more)")
	assert.Contains(t, r.String(), "unknown")
	assert.Contains(t, r.String(), "there is no upper bound: the autoencoder")
	text, err := json.Marshal(f.Needed)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"upper_bytes":null`)
	var read estimate.Value
	require.NoError(t, json.Unmarshal(text, &read))
	assert.Equal(t, f.Needed, read)
	assert.Error(t, json.Unmarshal([]byte(`{"bytes": "many"}`), &read))
}
