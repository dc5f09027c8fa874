package serving_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

func TestVLLMStart(t *testing.T) {
	s := serving.VLLMStart{Memory: 80 * alloc.GiB, Weights: 15 * alloc.GiB, Step: alloc.GiB, Vocab: 128256}
	b, err := serving.VLLM{}.Start(s)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(79027398247), b.Requested, "rounded up")
	assert.Equal(t, alloc.GiB, b.Profile.Bytes)
	assert.Equal(t, b.Requested-15*alloc.GiB-b.Profile.Bytes-b.Outside.Bytes-b.Graphs.Bytes, b.Cache.Bytes)
	assert.Less(t, b.Cache.Lower, b.Cache.Bytes)
	assert.Less(t, b.Cache.Bytes, b.Cache.Upper)

	s.Requests = 1024
	b, err = serving.VLLM{}.Start(s)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(14*1024*128256), b.Profile.Bytes, "sampling takes more")
	few, err := serving.VLLM{MaxBatchedTokens: 512}.Start(s)
	require.NoError(t, err)
	assert.Equal(t, alloc.GiB, few.Profile.Bytes, "a step of 512 tokens has no more requests")

	fraction, lower, upper, err := serving.VLLM{}.Fraction(s, b.Cache.Bytes)
	require.NoError(t, err)
	assert.InDelta(t, 0.92, fraction, 0.0011)
	assert.Less(t, lower, fraction)
	assert.Less(t, fraction, upper)

	eager := s
	eager.Eager = true
	b, err = serving.VLLM{}.Start(eager)
	require.NoError(t, err)
	assert.Zero(t, b.Graphs)
	old, err := serving.VLLM{Version: "0.19.1"}.Start(s)
	require.NoError(t, err)
	assert.Zero(t, old.Graphs, "graphs are beside the budget")
	assert.Equal(t, 72*alloc.GiB, old.Requested)

	for want, s := range map[string]serving.VLLMStart{
		"a GPU of 0 B":                {},
		"a Fraction of 1.5":           {Memory: 1, Fraction: 1.5},
		"a size is negative":          {Memory: 1, Vocab: -1},
		"a size is negative or too l": {Memory: 1, Weights: 1 << 60},
	} {
		_, err := serving.VLLM{}.Start(s)
		require.ErrorContains(t, err, want)
		_, _, _, err = serving.VLLM{}.Fraction(s, 1)
		require.ErrorContains(t, err, want)
	}
}

// What start-up logs print as "Available KV cache memory" is within the bounds. The first answers took 100 MiB outside of
// PyTorch, and 14 bytes of a logit for every release.
func TestVLLMStartPublished(t *testing.T) {
	for _, c := range []struct {
		source          string
		v               serving.VLLM
		memory, weights float64 // GiB
		fraction        float64
		width, vocab    int
		eager           bool
		logged, first   float64 // GiB
	}{
		{"myoceane.fr, gpt-oss-20b on an A100", serving.VLLM{Version: "0.19.0", MaxBatchedTokens: 2048}, 79.25, 13.72, 0.65, 40320, 201088, false, 36.56, 37.02},
		{"myoceane.fr, Gemma 4 26B-A4B on an A100", serving.VLLM{Version: "0.19.0", MaxBatchedTokens: 2048}, 79.25, 48.5, 0.9, 37696, 262144, true, 21.5, 21.85},
		{"ilseokoh/vllm-gce, Llama 3.1 8B on an A100 of 40 GB", serving.VLLM{Version: "0.15.1", MaxBatchedTokens: 8192}, 39.5, 14.99, 0.9, 51200, 128256, false, 19.28, 19.68},
	} {
		gibs := func(n float64) alloc.Bytes { return alloc.Bytes(n * float64(alloc.GiB)) }
		b, err := c.v.Start(serving.VLLMStart{
			Memory: gibs(c.memory), Fraction: c.fraction, Weights: gibs(c.weights), Step: alloc.Bytes(c.width * c.v.MaxBatchedTokens * 2), Vocab: c.vocab, Requests: 256, Eager: c.eager,
		})
		require.NoError(t, err)
		assert.InEpsilon(t, c.logged, gib(b.Cache.Bytes), 0.02, c.source)
		assert.Greater(t, gib(b.Cache.Upper), c.logged, c.source)
		assert.Less(t, gib(b.Cache.Lower), c.logged, c.source)
		assert.InEpsilon(t, c.logged, c.first, 0.021, c.source)
	}
}
