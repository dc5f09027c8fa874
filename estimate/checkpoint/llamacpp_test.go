package checkpoint

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func opened(t *testing.T, name string, data []byte) *File {
	c, err := ReadFile(writeFile(t, name, data))
	require.NoError(t, err)
	return c
}

// Where the tensors of a GGUF file go, and those of a config.json that is converted.
func TestLayerSizes(t *testing.T) {
	const block = 2 * (2*64 + 2*64*64 + 2*64*32 + 3*64*96) // the tensors of llamaGGUF are float16
	tied, err := opened(t, "tied.gguf", llamaGGUF()).layerSizes()
	require.NoError(t, err)
	want := setting.LayerSizes{Input: 2 * 4 * 64, Blocks: []alloc.Bytes{block, block}, Output: 2*64 + 2*4*64, Tied: 2 * 4 * 64}
	assert.Equal(t, want, tied)

	own, err := opened(t, "own.gguf", smallGGUF(llamaKeys(nil), "attn_norm 64", "/output 64 4", "/token_embd_norm 64")).layerSizes()
	require.NoError(t, err)
	assert.Equal(t, setting.LayerSizes{Input: 2 * (4*64 + 64), Blocks: []alloc.Bytes{128, 128}, Output: 2*64 + 2*4*64}, own)

	config := opened(t, "config.json", []byte(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4, "hidden_size": 64,
		"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true}`))
	converted, err := config.layerSizes()
	require.NoError(t, err)
	want.Output += 2 * 64 // norms are float32 in a file that is converted
	for i := range want.Blocks {
		want.Blocks[i] += 2 * 2 * 64
	}
	assert.Equal(t, want, converted)

	quantized := opened(t, "config.json", []byte(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4, "hidden_size": 64,
		"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "float16",
		"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}`))
	packed, err := quantized.layerSizes()
	require.NoError(t, err)
	assert.Equal(t, want.Input, packed.Input)
	assert.Less(t, packed.Blocks[0], want.Blocks[0]/2)
	r, err := quantized.Report()
	require.NoError(t, err)
	assert.InDelta(t, int64(r.Params.Bytes), int64(packed.Input+packed.Blocks[0]+packed.Blocks[1]+packed.Output), 2, "what the report says of the weights")

	_, err = opened(t, "w.gguf", ggufBytes(nil, ggufTensor{"w", []uint64{1}, 24, 0})).layerSizes()
	assert.ErrorContains(t, err, "no tensors of blocks")
	_, err = opened(t, "far.gguf", ggufBytes(nil, ggufTensor{"blk.999999999.w", []uint64{1}, 24, 0})).layerSizes()
	assert.ErrorContains(t, err, "no tensors of blocks")
}

func TestProjector(t *testing.T) {
	projector := opened(t, "mmproj.gguf", ggufBytes([]ggufKey{{"general.architecture", "clip"}, {"clip.has_vision_encoder", true}},
		ggufTensor{"v.patch_embd.weight", []uint64{14, 14, 3, 32}, 1, 0}))
	n, err := projector.Projector()
	require.NoError(t, err)
	assert.EqualValues(t, 2*14*14*3*32, n)
	_, err = opened(t, "model.gguf", llamaGGUF()).Projector()
	assert.ErrorContains(t, err, "is no projector: give a GGUF file")
}
