package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Caches take what testdata/torch/caches.py measured for small models, to the byte: after a prompt, with images or sounds if the
// model was given any, and after one more token.
func TestCachesAsTransformersHasThem(t *testing.T) {
	files, err := filepath.Glob("testdata/torch/caches_*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		var measured, models map[string]json.RawMessage
		decodeFile(t, file, &measured)
		decodeFile(t, strings.Replace(file, "caches_", "families_", 1), &models)
		delete(measured, "torch")
		delete(measured, "transformers")
		for name, text := range measured {
			t.Run(name, func(t *testing.T) {
				var m measuredFamily
				require.NoError(t, json.Unmarshal(models[name], &m))
				var sizes map[string][2]alloc.Bytes
				require.NoError(t, json.Unmarshal(text, &sizes))
				c, err := ParseConfig(name, m.Config)
				require.NoError(t, err)
				c = m.prompted(t, c)
				for dtype, want := range sizes {
					for i, size := range want {
						cache, err := c.Cache(2, m.Length+i)
						require.NoError(t, err)
						cache.Prompt = [2]int{m.Length, 1}[i]
						cache.DType, err = alloc.ParseDType(dtype)
						require.NoError(t, err)
						got, err := estimate.KVCache(cache)
						require.NoError(t, err)
						assert.Equal(t, size, got, "%s, %d tokens", dtype, m.Length+i)
					}
				}
			})
		}
	}
}

func decodeFile(t *testing.T, file string, to any) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, to))
}
