package checkpoint

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// changedType is what testdata/torch/changed.py counted for a model_type.
type changedType struct {
	Config  map[string]any // the default, as save_pretrained writes it
	Params  int64
	Changed []struct {
		Set    map[string]any // the values that differ from the default's file
		Unset  [][]string     // the paths of keys that only the default's file has
		Params int64
	}
}

// Models have as many parameters as transformers makes of their config.json, also where it was changed and saved again.
func TestChangedConfigsGiveTheNumberOfParameters(t *testing.T) {
	files, err := filepath.Glob("testdata/torch/changed_*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var types map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &types))
		delete(types, "torch")
		delete(types, "transformers")
		delete(types, "diffusers")
		for name, text := range types {
			t.Run(name, func(t *testing.T) { testChanged(t, text) })
		}
	}
}

func testChanged(t *testing.T, text []byte) {
	var of changedType
	require.NoError(t, json.Unmarshal(text, &of))
	require.GreaterOrEqual(t, len(of.Changed), 10)
	assertParams(t, of.Config, of.Params, "the default")
	for i, change := range of.Changed {
		var config map[string]any // a copy, which the change may write to
		whole, err := json.Marshal(of.Config)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(whole, &config))
		overwrite(config, change.Set)
		for _, path := range change.Unset {
			part := config
			for _, key := range path[:len(path)-1] {
				part = part[key].(map[string]any)
			}
			delete(part, path[len(path)-1])
		}
		set, _ := json.Marshal(change.Set)
		assertParams(t, config, change.Params, fmt.Sprintf("change %d: %s, without %v", i, set, change.Unset))
	}
}

func assertParams(t *testing.T, config map[string]any, want int64, name string) {
	t.Helper()
	text, err := json.Marshal(config)
	require.NoError(t, err)
	c, err := ParseConfig("changed", text)
	if !assert.NoError(t, err, name) {
		return
	}
	report, err := c.Report()
	if assert.NoError(t, err, name) {
		assert.Equal(t, want, report.Params.Count, name)
	}
}

// overwrite gives a config the values of a change; objects in both are merged.
func overwrite(config, change map[string]any) {
	for key, value := range change {
		part, inBoth := config[key].(map[string]any)
		if values, ok := value.(map[string]any); ok && inBoth {
			overwrite(part, values)
		} else {
			config[key] = value
		}
	}
}
