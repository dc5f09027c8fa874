// Package gguf_test holds what package checkpoint reads from GGUF files against
// another reader of them.
package gguf_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	parser "github.com/gpustack/gguf-parser-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

const alignment = 32

// writeFile writes a model whose tensors have these types, two rows of three
// blocks each.
func writeFile(t *testing.T, types ...parser.GGMLType) string {
	b := []byte("GGUF")
	put := func(v any) {
		var err error
		b, err = binary.Append(b, binary.LittleEndian, v)
		require.NoError(t, err)
	}
	text := func(s string) {
		put(uint64(len(s)))
		b = append(b, s...)
	}
	pad := func(n int) int { return (n + alignment - 1) / alignment * alignment }

	put(uint32(3)) // the version
	put(uint64(len(types)))
	put(uint64(3))
	text("general.architecture")
	put(uint32(parser.GGUFMetadataValueTypeString))
	text("none")
	text("llama.block_count")
	put(uint32(parser.GGUFMetadataValueTypeUint32))
	put(uint32(2))
	text("tokenizer.ggml.tokens")
	put([]uint32{uint32(parser.GGUFMetadataValueTypeArray), uint32(parser.GGUFMetadataValueTypeString)})
	put(uint64(2))
	text("a")
	text("bc")
	data := 0
	for i, kind := range types {
		trait, _ := kind.Trait()
		text(fmt.Sprintf("blk.%d.%v", i, kind))
		put(uint32(2))
		put([]uint64{3 * max(trait.BlockSize, 1), 2})
		put(uint32(kind))
		put(uint64(data))
		data = pad(data + int(6*trait.TypeSize))
	}
	b = append(b, make([]byte, pad(len(b))-len(b)+data)...)
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, b, 0o644))
	return path
}

// known returns the tensor types of the other reader, and which of them ggml has
// withdrawn.
func known() (types, withdrawn []parser.GGMLType) {
	for kind := parser.GGMLType(0); ; kind++ {
		trait, ok := kind.Trait()
		switch {
		case !ok:
			return types, withdrawn
		case trait.BlockSize == 0, kind >= parser.GGMLTypeQ4_0_4_4 && kind <= parser.GGMLTypeQ4_0_8_8,
			kind >= parser.GGMLTypeIQ4_NL_4_4 && kind <= parser.GGMLTypeIQ4_NL_8_8:
			withdrawn = append(withdrawn, kind)
		default:
			types = append(types, kind)
		}
	}
}

// held is what the tensors of a file have.
func held(t *testing.T, path string) estimate.Amount {
	c, err := checkpoint.ReadFile(path)
	require.NoError(t, err)
	r, err := c.Report()
	require.NoError(t, err)
	return r.Params
}

func TestReadersAgree(t *testing.T) {
	types, _ := known()
	require.Greater(t, len(types), 30)
	path := writeFile(t, types...)
	want, err := parser.ParseGGUFFile(path)
	require.NoError(t, err)
	params := held(t, path)
	assert.EqualValues(t, want.ModelParameters, params.Count)
	var all int64
	for i, info := range want.TensorInfos { // one type at a time: what its blocks take
		one := held(t, writeFile(t, types[i]))
		assert.EqualValues(t, info.Bytes(), one.Bytes, info.Type.String())
		assert.EqualValues(t, info.Elements(), one.Count, info.Type.String())
		all += int64(info.Bytes())
	}
	assert.EqualValues(t, all, params.Bytes)
}

func TestWithdrawnTypesAreRefused(t *testing.T) {
	_, withdrawn := known()
	require.NotEmpty(t, withdrawn)
	for _, kind := range withdrawn {
		_, err := checkpoint.ReadFile(writeFile(t, kind))
		assert.ErrorContains(t, err, fmt.Sprintf("unknown tensor type %d", kind), kind)
	}
}
