//go:build !windows

package memtrack_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeModel writes a model of two layers, all zeros, that llama.cpp loads. It has no vocabulary.
func writeModel(t *testing.T) string {
	const width, hidden, words, layers, alignment = 256, 512, 1024, 2, 32
	const isUint32, isFloat32, isString = uint32(4), uint32(6), uint32(8)
	b := []byte("GGUF")
	put := func(values ...any) {
		for _, v := range values {
			if s, ok := v.(string); ok {
				b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
				b = append(b, s...)
				continue
			}
			var err error
			b, err = binary.Append(b, binary.LittleEndian, v)
			require.NoError(t, err)
		}
	}
	type tensor struct {
		name string
		dims []uint64
	}
	tensors := []tensor{{"token_embd", []uint64{width, words}}, {"output_norm", []uint64{width}}, {"output", []uint64{width, words}}}
	for i := range layers {
		for name, dims := range map[string][]uint64{
			"attn_norm": {width}, "attn_q": {width, width}, "attn_k": {width, width}, "attn_v": {width, width}, "attn_output": {width, width},
			"ffn_norm": {width}, "ffn_gate": {width, hidden}, "ffn_up": {width, hidden}, "ffn_down": {hidden, width},
		} {
			tensors = append(tensors, tensor{fmt.Sprintf("blk.%d.%s", i, name), dims})
		}
	}
	put(uint32(3), uint64(len(tensors)), uint64(10))
	put("general.architecture", isString, "llama")
	put("tokenizer.ggml.model", isString, "none")
	put("llama.vocab_size", isUint32, uint32(words))
	put("llama.context_length", isUint32, uint32(256))
	put("llama.embedding_length", isUint32, uint32(width))
	put("llama.block_count", isUint32, uint32(layers))
	put("llama.feed_forward_length", isUint32, uint32(hidden))
	put("llama.attention.head_count", isUint32, uint32(4))
	put("llama.rope.dimension_count", isUint32, uint32(width/4))
	put("llama.attention.layer_norm_rms_epsilon", isFloat32, float32(1e-5))
	data := uint64(0)
	for _, x := range tensors {
		const isF32 = uint32(0)
		put(x.name+".weight", uint32(len(x.dims)), x.dims, isF32, data)
		size := uint64(4)
		for _, d := range x.dims {
			size *= d
		}
		data += size
	}
	b = append(b, make([]byte, alignment)...)
	b = append(b[:len(b)/alignment*alignment], make([]byte, data)...)
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, b, 0o644))
	return path
}
