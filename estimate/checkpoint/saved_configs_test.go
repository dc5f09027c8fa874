package checkpoint

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Files as transformers 5.24 and diffusers 0.42 write them, with keys that once had no effect here. A config whose layers
// differ in a way that is not read is refused, and the error names the key.
func TestSavedConfigs(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/saved_configs.json")
	require.NoError(t, err)
	var all []struct {
		Name    string
		Config  json.RawMessage
		Params  int64 // of the model on the meta device
		Refused string
	}
	require.NoError(t, json.Unmarshal(data, &all))
	for _, c := range all {
		f, err := ReadFile(writeFile(t, configName, c.Config))
		if c.Refused != "" {
			require.ErrorContains(t, err, c.Refused, c.Name)
			continue
		}
		require.NoError(t, err, c.Name)
		r, err := f.Report()
		require.NoError(t, err, c.Name)
		assert.Equal(t, c.Params, r.Params.Count, c.Name)
	}
}
