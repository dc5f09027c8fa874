package checkpoint

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Models have the bytes of buffers and of weights that transformers makes of them in float32, bfloat16 and float16, as
// testdata/torch/buffers.py measured them. Buffers of less than 1,024 elements are not held to it.
func TestBuffersAndWeightsOfTransformers(t *testing.T) {
	var covers struct{ Types map[string]covered }
	unzip(t, "testdata/torch/coverage.json.gz", &covers)
	var file struct {
		Types map[string]struct {
			Changed map[string]any
			Classes map[string][3][2]alloc.Bytes // by type of weights, the bytes of buffers and of parameters
		}
	}
	unzip(t, "testdata/torch/buffers.json.gz", &file)
	held := 0
	for _, kind := range slices.Sorted(maps.Keys(file.Types)) {
		of := file.Types[kind]
		for _, class := range slices.Sorted(maps.Keys(of.Classes)) {
			config := maps.Clone(covers.Types[kind].Config)
			maps.Copy(config, of.Changed)
			config["architectures"] = []string{class}
			text, err := json.Marshal(config)
			require.NoError(t, err)
			f, err := ParseConfig("model", text)
			if err != nil {
				continue // TestCoverageOfTransformers has the classes that are read
			}
			for i, d := range []alloc.DType{alloc.Float32, alloc.BFloat16, alloc.Float16} {
				want := of.Classes[class][i]
				r, err := f.Report(estimate.Precision(d))
				if !assert.NoError(t, err, "%s of %s", class, kind) {
					break
				}
				held++
				assert.InDelta(t, int64(want[0]), int64(r.Inference.Buffers), 4096, "buffers of %s of %s in %v", class, kind, d)
				if class == "MT5ForConditionalGeneration" { // a model that is made has one tensor where a file that is loaded has two
					continue
				}
				assert.Equal(t, want[1], r.Inference.Weights, "weights of %s of %s in %v", class, kind, d)
			}
		}
	}
	t.Logf("buffers and weights of %d classes", held/3)
}
