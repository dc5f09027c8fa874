package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func TestKVCache(t *testing.T) {
	m, err := zoo.ByName("llama-2-7b")
	require.NoError(t, err)
	cache := func(m zoo.Model, context int) alloc.Bytes {
		c, err := m.Cache(1, context)
		require.NoError(t, err)
		n, err := estimate.KVCache(c)
		require.NoError(t, err)
		return n
	}
	assert.Equal(t, 2*alloc.GiB, cache(m, 4096), "half a MiB a token")
	mistral, err := zoo.ByName("mistral-7b")
	require.NoError(t, err)
	assert.Equal(t, cache(mistral, 4096), cache(mistral, 32768), "the window slides")
	_, err = estimate.KVCache(estimate.KVConfig{Batch: 1})
	assert.ErrorContains(t, err, "ContextLength is 0")
	c, err := m.Cache(1, 4096)
	require.NoError(t, err)
	r := model(t, m.Layers, m.Input, estimate.Precision(alloc.Float16), c)
	assert.Equal(t, 2*alloc.GiB, r.Inference.Cache)
}

// llama.cpp prints 68 bytes for 64 elements of Q8_0, and the sizes of its caches follow.
func TestQuantizedCache(t *testing.T) {
	c := estimate.KVConfig(llama3b.Cache(1, 8192, 0))
	half, err := estimate.KVCache(c)
	require.NoError(t, err)
	for keys, bits := range map[string]float64{"q8_0": 8.5, "q4_0": 4.5, "iq4_nl": 4.5, "float32": 32} {
		c.Keys = keys
		n, err := estimate.KVCache(c)
		require.NoError(t, err)
		assert.InDelta(t, float64(half)*bits/16, float64(n), 1)
	}
	c.Keys, c.Values = "q8_0", "float16"
	n, err := estimate.KVCache(c)
	require.NoError(t, err)
	assert.EqualValues(t, float64(half)*(8.5+16)/32, n, "quantized keys, values in float16")
	c.Keys, c.Values, c.ValueSize = "q4_0", "q8_0", c.HeadSize/2
	n, err = estimate.KVCache(c)
	require.NoError(t, err)
	assert.EqualValues(t, float64(half)*(4.5+8.5/2)/32, n, "values of half the size")
	c.KVHeads, c.ValueSize = 1, 80
	_, err = estimate.KVCache(c)
	assert.ErrorContains(t, err, "Values in blocks of 32 elements do not divide the 80 of a token")
	c.ValueSize = -1
	_, err = estimate.KVCache(c)
	assert.ErrorContains(t, err, "ValueSize is -1")
	c.Keys, c.Values, c.ValueSize = "q4_0", "", 0
	c.KVHeads, c.HeadSize = 1, 80
	_, err = estimate.KVCache(c)
	assert.ErrorContains(t, err, "Keys in blocks of 32 elements do not divide the 80 of a token")
	c.Keys = "q9"
	_, err = estimate.KVCache(c)
	assert.ErrorContains(t, err, `Keys is "q9": want one of q8_0, q5_1`)
}

func TestMaxContext(t *testing.T) {
	opts := []estimate.Option{estimate.Tokens(1, 512), estimate.Precision(alloc.BFloat16), estimate.KVConfig(llama3b.Cache(1, 1, alloc.BFloat16))}
	n, err := estimate.MaxContextLength(layer.Public(llama3b.Layers()), 16*alloc.GiB, opts...)
	require.NoError(t, err)
	fits := func(context int) bool {
		return model(t, layer.Public(llama3b.Layers()), append(opts, estimate.KVConfig(llama3b.Cache(1, context, alloc.BFloat16)))...).Fits(16 * alloc.GiB)
	}
	assert.True(t, fits(n))
	assert.False(t, fits(n+n/50))
	assert.Greater(t, n, 20_000)
	_, err = estimate.MaxContextLength(layer.Public(llama3b.Layers()), 16*alloc.GiB, opts[:2]...)
	assert.ErrorContains(t, err, "needs a KVConfig")
	n, err = estimate.MaxContextLength(layer.Public(llama3b.Layers()), alloc.GiB, opts...)
	require.NoError(t, err)
	assert.Zero(t, n, "not even the input's tokens")
}

func TestCacheHoldsTheInput(t *testing.T) {
	for want, cache := range map[string]estimate.KVConfig{
		"a Batch of 1 and a Context of 512 do not hold the input, 2 sequences of 512 tokens": estimate.KVConfig(llama3b.Cache(1, 512, 0)),
		"a Batch of 2 and a Context of 511 do not hold the input, 2 sequences of 512 tokens": estimate.KVConfig(llama3b.Cache(2, 511, 0)),
	} {
		_, err := estimate.Model(layer.Public(llama3b.Layers()), estimate.Tokens(2, 512), cache)
		assert.ErrorContains(t, err, want)
	}
}

// Attention that holds the scores sees the keys in the cache, and keys and values that several
// query heads share are repeated for each.
func TestScoresSeeTheCache(t *testing.T) {
	for name, c := range map[string]family.Transformer{
		"plain": {Vocab: 100, Hidden: 64, FFN: 128, Blocks: 2, Heads: 8, KVHeads: 2, Attention: family.Attention{Plain: true}},
		"eager": {Family: family.Gemma2, Vocab: 100, Hidden: 64, FFN: 128, Blocks: 2, Heads: 8, KVHeads: 2, HeadSize: 8, Attention: family.Attention{CappedScores: true}},
	} {
		t.Run(name, func(t *testing.T) {
			transient := func(context int) alloc.Bytes {
				return model(t, layer.Public(c.Layers()), estimate.Tokens(2, 16), estimate.KVConfig(c.Cache(2, context, 0))).Inference.Transient
			}
			scores := alloc.Bytes(2 * 8 * 16 * 4 * (4096 - 512))
			assert.GreaterOrEqual(t, transient(4096)-transient(512), scores)
		})
	}
}

// Tensor parallelism divides the heads of keys and values, of which no device
// has less than one; a pipeline divides the layers.
func TestShardedCache(t *testing.T) {
	m, err := zoo.ByName("llama-3-8b")
	require.NoError(t, err)
	c, err := m.Cache(1, 8192)
	require.NoError(t, err)
	cache := func(s estimate.Sharding) alloc.Bytes {
		return model(t, m.Layers, c, s).Inference.Cache
	}
	assert.Equal(t, alloc.GiB, cache(estimate.Sharding{}))
	assert.Equal(t, alloc.GiB/8, cache(estimate.Sharding{Tensor: 8}))
	assert.Equal(t, alloc.GiB/8, cache(estimate.Sharding{Tensor: 32}))
	assert.Equal(t, alloc.GiB/16, cache(estimate.Sharding{Tensor: 4, Pipeline: 4}))
}

// An encoder keeps no keys and values.
func TestEncodersHaveNoCache(t *testing.T) {
	bert := family.Transformer{Family: encoder.BERT, Vocab: 64, Hidden: 96, FFN: 96, Blocks: 1, Heads: 12, Positions: 64}
	_, err := estimate.Model(layer.Public(bert.Layers()), estimate.Tokens(1, 4), estimate.KVConfig(bert.Cache(1, 4, 0)))
	assert.ErrorContains(t, err, "Layers is 0")
}

// Without a Prompt the input is the prompt, of which layers with a window hold all tokens, unless the cache is Static.
func TestInputIsThePrompt(t *testing.T) {
	m, err := zoo.ByName("mistral-7b")
	require.NoError(t, err)
	const tokens, window = 8192, 4096
	c, err := m.Cache(1, tokens)
	require.NoError(t, err)
	each := alloc.Bytes(2 * 2 * c.Layers * c.KVHeads * c.HeadSize)
	report := func(c estimate.KVConfig) estimate.Memory {
		return model(t, m.Layers, estimate.Tokens(1, tokens), estimate.Precision(alloc.BFloat16), c).Inference
	}
	assert.Equal(t, tokens*each, report(c).Cache)
	assert.Equal(t, window*each, report(c).CacheNext)
	c.Static = true
	assert.Equal(t, window*each, report(c).Cache)
	assert.Equal(t, window*each, report(c).CachePeak)
}

// With any piece of a prompt, the most that the cache takes is within CachePeak, and with it within the bounds: layers
// append one after another, as DynamicCache of transformers does it.
func TestCachePeakHoldsWhilePiecesAreAppended(t *testing.T) {
	const layers, full, window, tokens = 5, 2, 64, 512
	for _, piece := range []int{1, 2, 8, 63, 64, 65, 128, 500, 512} {
		c := estimate.KVConfig{Batch: 1, ContextLength: tokens, Layers: layers, Full: full, KVHeads: 1, HeadSize: 64, Window: window, Prompt: piece, DType: alloc.BFloat16}
		held, seen, most := [layers]int{}, [layers]int{}, 0
		forward := func(n int) {
			for i := range held {
				old := held[i]
				kept := min(seen[i], window-1)
				if i < full {
					kept = seen[i]
				}
				held[i], seen[i] = kept+n, seen[i]+n
				sum := old
				for _, h := range held {
					sum += h
				}
				most = max(most, sum)
			}
		}
		for at := 0; at < tokens; at += piece {
			forward(min(piece, tokens-at))
		}
		forward(1)
		r := model(t, layer.Public(llama3b.Layers()), estimate.Tokens(1, min(piece, 2)), estimate.Precision(alloc.BFloat16), c)
		want := alloc.Bytes(most * 2 * 2 * 64)
		assert.GreaterOrEqual(t, r.Inference.CachePeak, want, piece)
		assert.LessOrEqual(t, r.Inference.CachePeak, 2*want, piece)
		assert.GreaterOrEqual(t, r.Inference.Peak.Upper, r.Inference.Weights+r.Inference.CachePeak, piece)
	}
}
