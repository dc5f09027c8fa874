package checkpoint

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// measuredCache is what testdata/torch/default_caches.py measured: the bytes that the cache of a small model holds after a prompt
// and after the next token, for the model in float32 and in bfloat16.
type measuredCache struct {
	Type         string
	Config       json.RawMessage
	Prompt, Next []alloc.Bytes
}

// The cache of each type has the size that was measured, or is refused. Layers with a window hold the whole prompt until
// the next token, and recurrent states are float32 in bfloat16 too.
func TestCachesAsMeasured(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/default_caches.json")
	require.NoError(t, err)
	var all []measuredCache
	require.NoError(t, json.Unmarshal(data, &all))
	refused := map[string]bool{}
	for _, m := range all {
		const batch, prompt = 2, 40 // as in default_caches.py
		c, err := ReadFile(writeFile(t, configName, m.Config))
		var cache estimate.KVConfig
		if err == nil {
			cache, err = c.Cache(batch, prompt)
		}
		if err != nil {
			refused[m.Type] = true
			t.Logf("%s: %v", m.Type, err)
			continue
		}
		cache.Prompt = prompt
		for i, d := range []alloc.DType{alloc.Float32, alloc.BFloat16} {
			cache.DType = d
			moments, err := setting.CacheMoments(setting.KVConfig(cache))
			require.NoError(t, err, m.Type)
			whole, err := estimate.KVCache(cache)
			require.NoError(t, err, m.Type)
			assert.Equal(t, m.Prompt[i], whole, "%s in %v after the prompt", m.Type, d)
			if m.Next != nil {
				assert.Equal(t, m.Next[i], moments.Next.All(), "%s in %v after the next token", m.Type, d)
			}
			assert.GreaterOrEqual(t, moments.Peak, max(moments.Next.All(), whole))
		}
	}
	assert.LessOrEqual(t, len(refused), 45, refused)
}

// Tensor parallelism divides the heads of keys and values, in blocks without a window too.
func TestCachesOfUnequalBlocksAreDivided(t *testing.T) {
	const config = `{"model_type": "gemma4_text", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 8,
		"num_key_value_heads": 4, "head_dim": 16, "num_global_key_value_heads": 2, "global_head_dim": 48, "attention_k_eq_v": true, "sliding_window": 16, "hidden_size_per_layer_input": 0}`
	c, err := ReadFile(writeFile(t, configName, []byte(config)))
	require.NoError(t, err)
	cache, err := c.Cache(1, 64)
	require.NoError(t, err)
	for devices, want := range map[int]alloc.Bytes{
		1: 2 * 2 * (5*16*4*16 + 64*2*48), 2: 2 * 2 * (5*16*2*16 + 64*48), 4: 2 * 2 * (5*16*16 + 64*48), // each device has a head
	} {
		k, err := setting.KVCache(setting.KVConfig(cache).Shard(setting.Sharding{Data: 1, Tensor: devices, Pipeline: 1}))
		require.NoError(t, err)
		assert.Equal(t, want, k.All(), devices)
	}
}
