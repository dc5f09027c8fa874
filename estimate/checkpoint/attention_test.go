package checkpoint

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Each type attends as transformers runs it by default (testdata/torch/attention.py): one that runs "eager" keeps as much where
// that is asked for, and one that runs "sdpa" keeps less.
func TestAttentionRunsAsTransformersRunsIt(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/attention.json")
	require.NoError(t, err)
	var file struct {
		Types map[string]map[string]string // of each type, by the type of the part; "" is the model itself
	}
	require.NoError(t, json.Unmarshal(data, &file))
	var defaults struct{ Types map[string]covered }
	unzip(t, "testdata/torch/coverage.json.gz", &defaults)
	checked := 0
	for _, kind := range slices.Sorted(maps.Keys(file.Types)) {
		of := defaults.Types[kind]
		for _, class := range slices.Sorted(maps.Keys(of.Classes)) {
			if of.Classes[class].Params == nil {
				continue
			}
			config := maps.Clone(of.Config)
			config["architectures"] = []string{class}
			usual, eager, ok := attended(t, config)
			if !ok {
				continue
			}
			checked++
			if file.Types[kind][""] == "eager" {
				assert.Equal(t, eager, usual, "%s of %s holds scores", class, kind)
			} else {
				assert.Less(t, usual, eager, "%s of %s holds no scores", class, kind)
			}
			break
		}
	}
	t.Logf("%d types", checked)
}

// attended returns what a model keeps with the attention of its own, and with eager attention. It is not ok if the model is refused.
func attended(t *testing.T, config map[string]any) (usual, eager alloc.Bytes, ok bool) {
	text, err := json.Marshal(config)
	require.NoError(t, err)
	c, err := ParseConfig("config.json", text)
	if err != nil {
		return 0, 0, false
	}
	input, err := c.Input(1, 0)
	if err != nil {
		return 0, 0, false
	}
	for kernel, kept := range map[string]*alloc.Bytes{"": &usual, "eager": &eager} {
		r, err := c.Report(input, estimate.Train("adam"), estimate.Attends(kernel))
		if err != nil {
			return 0, 0, false
		}
		*kept = r.Retained
	}
	return usual, eager, true
}
