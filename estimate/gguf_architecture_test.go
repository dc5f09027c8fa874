package estimate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// llamaKeys are the metadata of a small Llama, with some of them replaced, or taken
// out where the replacement is nil.
func llamaKeys(replace map[string]any) []ggufKey {
	keys := []ggufKey{
		{"general.architecture", "llama"},
		{"llama.embedding_length", uint32(64)},
		{"llama.block_count", uint32(2)},
		{"llama.feed_forward_length", uint32(96)},
		{"llama.attention.head_count", uint32(4)},
		{"llama.attention.head_count_kv", uint32(2)},
		{"llama.context_length", uint32(128)},
		{"tokenizer.ggml.tokens", []string{"a", "b", "c", "d"}},
	}
	var kept []ggufKey
	for _, key := range keys {
		value, replaced := replace[key.name]
		if replaced {
			key.value = value
		}
		if key.value != nil {
			kept = append(kept, key)
		}
	}
	return kept
}

// llamaGGUF is a small Llama with its tensors.
func llamaGGUF() []byte {
	tensors := []ggufTensor{{"token_embd.weight", []uint64{64, 4}, 1, 0}}
	offset := uint64(64 * 4 * 2)
	add := func(name string, dims ...uint64) {
		tensors = append(tensors, ggufTensor{name, dims, 1, offset})
		size := uint64(2)
		for _, dim := range dims {
			size *= dim
		}
		offset += (size + 31) &^ 31
	}
	for _, block := range []string{"blk.0.", "blk.1."} {
		add(block+"attn_norm.weight", 64)
		add(block+"attn_q.weight", 64, 64)
		add(block+"attn_k.weight", 64, 32)
		add(block+"attn_v.weight", 64, 32)
		add(block+"attn_output.weight", 64, 64)
		add(block+"ffn_norm.weight", 64)
		add(block+"ffn_gate.weight", 64, 96)
		add(block+"ffn_up.weight", 64, 96)
		add(block+"ffn_down.weight", 96, 64)
	}
	add("output_norm.weight", 64)
	return ggufBytes(llamaKeys(nil), tensors...)
}

// checkArchitecture checks that an architecture that was read without an error can
// be built, or that Model says why not, in bounded memory.
func checkArchitecture(t *testing.T, a architecture) {
	heap := allocated(func() { _, _ = Model(a.layers()) })
	if heap > 256<<20 {
		t.Fatalf("%d bytes allocated for the layers of %+v", heap, a)
	}
}

func TestGGUFTellsTheArchitecture(t *testing.T) {
	c, err := Open(writeFile(t, "llama.gguf", llamaGGUF()))
	require.NoError(t, err)
	family, err := c.Architecture()
	require.NoError(t, err)
	assert.Equal(t, "llama", family)
	assert.Equal(t, Transformer{
		Family: Llama, Hidden: 64, Blocks: 2, Heads: 4, KVHeads: 2, FFN: 96, Vocab: 4, Tied: true,
	}, c.architecture.Transformer)

	report, err := c.Report(Tokens(1, 16))
	require.NoError(t, err)
	assert.Equal(t, c.Parameters(), report.Params.Count)
	assert.Equal(t, c.Bytes(), report.Params.Bytes)
	cache, err := c.Cache(1, 16)
	require.NoError(t, err)
	size, err := KVCache(cache)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(2*2*16*2*16*2), size)
}

func TestGGUFSaysWhatIsWrongWithTheArchitecture(t *testing.T) {
	for name, test := range map[string]struct {
		replace map[string]any
		want    string
	}{
		"another one":      {map[string]any{"general.architecture": "mamba"}, `"general.architecture": "mamba" is none of those that are known: unknown architecture`},
		"none":             {map[string]any{"general.architecture": nil}, `"general.architecture": "" is none of those`},
		"a number":         {map[string]any{"general.architecture": uint8(3)}, `"general.architecture": "" is none of those`},
		"no heads":         {map[string]any{"llama.attention.head_count": nil}, `metadata key "llama.attention.head_count" is missing`},
		"zero heads":       {map[string]any{"llama.attention.head_count": uint32(0)}, `"llama.attention.head_count": 0 is not a number from 1`},
		"hidden a float":   {map[string]any{"llama.embedding_length": float32(64)}, `"llama.embedding_length": is no whole number`},
		"hidden negative":  {map[string]any{"llama.embedding_length": int32(-64)}, `"llama.embedding_length": is out of range`},
		"hidden too large": {map[string]any{"llama.embedding_length": uint64(1 << 40)}, `"llama.embedding_length": 1099511627776 is not a number`},
		"heads by layer":   {map[string]any{"llama.attention.head_count_kv": []uint32{2, 4}}, `"llama.attention.head_count_kv": differs from layer to layer`},
		"heads do not fit": {map[string]any{"llama.attention.head_count_kv": uint32(3)}, "4 heads cannot share 3 heads of keys and values"},
		"hidden and heads": {map[string]any{"llama.embedding_length": uint32(65)}, "a hidden size of 65 does not divide into 4 heads"},
		"a million layers": {map[string]any{"llama.block_count": uint32(1 << 20)}, "1048576 blocks, more than 1024"},
		"no vocabulary":    {map[string]any{"tokenizer.ggml.tokens": nil}, "neither vocab_size nor the tokenizer's tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Open(writeFile(t, "bad.gguf", ggufBytes(llamaKeys(test.replace))))
			require.NoError(t, err)
			_, err = c.Architecture()
			require.ErrorContains(t, err, test.want)
		})
	}
	same, err := Open(writeFile(t, "same.gguf", ggufBytes(llamaKeys(map[string]any{"llama.attention.head_count_kv": []uint32{2, 2}}))))
	require.NoError(t, err)
	_, err = same.Architecture()
	assert.NoError(t, err)
}
