package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// ggufKey is a key of the metadata; the value may be a string, a bool, a number of any
// size, or a slice of one of these.
type ggufKey struct {
	name  string
	value any
}

// ggufTensor is a tensor's description, dimensions in GGUF's order.
type ggufTensor struct {
	name   string
	dims   []uint64
	kind   uint32
	offset uint64
}

// ggufHeader writes a header without its padding.
func ggufHeader(keys []ggufKey, tensors ...ggufTensor) []byte {
	b := []byte("GGUF")
	put := func(v any) { b, _ = binary.Append(b, binary.LittleEndian, v) }
	text := func(s string) { put(uint64(len(s))); b = append(b, s...) }
	put(uint32(3))
	put(uint64(len(tensors)))
	put(uint64(len(keys)))
	for _, key := range keys {
		text(key.name)
		switch v := key.value.(type) {
		case string:
			put(uint32(ggufString))
			text(v)
		case []string:
			put([]uint32{ggufArray, ggufString})
			put(uint64(len(v)))
			for _, s := range v {
				text(s)
			}
		case []uint32:
			put([]uint32{ggufArray, ggufUint32})
			put(uint64(len(v)))
			put(v)
		case []bool:
			put([]uint32{ggufArray, ggufBool})
			put(uint64(len(v)))
			put(v)
		case []float32:
			put([]uint32{ggufArray, ggufFloat32})
			put(uint64(len(v)))
			put(v)
		default:
			put(ggufKindOf(v))
			put(v)
		}
	}
	for _, t := range tensors {
		text(t.name)
		put(uint32(len(t.dims)))
		put(t.dims)
		put(t.kind)
		put(t.offset)
	}
	return b
}

func ggufKindOf(v any) uint32 {
	switch v.(type) {
	case uint8:
		return ggufUint8
	case int8:
		return ggufInt8
	case uint16:
		return ggufUint16
	case int16:
		return ggufInt16
	case uint32:
		return ggufUint32
	case int32:
		return ggufInt32
	case float32:
		return ggufFloat32
	case bool:
		return ggufBool
	case uint64:
		return ggufUint64
	case int64:
		return ggufInt64
	case float64:
		return ggufFloat64
	}
	panic(fmt.Sprintf("no GGUF type for %T", v))
}

// ggufBytes is a whole file: header, padding, and data up to the end of the last
// tensor.
func ggufBytes(keys []ggufKey, tensors ...ggufTensor) []byte {
	b := ggufHeader(keys, tensors...)
	b = append(b, make([]byte, -len(b)&31)...)
	if len(tensors) > 0 {
		last := tensors[len(tensors)-1]
		elements := 1
		for _, dim := range last.dims {
			elements *= int(dim)
		}
		size, _ := ggufEncodings[last.kind].size(int64(elements))
		b = append(b, make([]byte, int(last.offset)+int(size))...)
	}
	return b
}

func TestGGUFTellsTheTensors(t *testing.T) {
	content := ggufBytes(
		[]ggufKey{
			{"general.architecture", "none"}, {"general.alignment", uint32(32)},
			{"tokenizer.ggml.tokens", []string{"<s>", "", "hello"}}, {"tokenizer.ggml.scores", []float32{1, 2, 3}},
			{"a", uint8(1)}, {"b", int8(-1)}, {"c", uint16(1)}, {"d", int16(-1)}, {"e", int32(-1)}, {"f", float32(1)},
			{"g", true}, {"h", uint64(1)}, {"i", int64(-1)}, {"j", 1.5}, {"template", strings.Repeat("x", maxGGUFText+1)},
		},
		ggufTensor{"token_embd.weight", []uint64{256, 3}, 12, 0},
		ggufTensor{"norm", []uint64{3}, 0, 3 * 144},
		ggufTensor{"scalar", nil, 30, 3*144 + 32 - 16},
	)
	// 3 rows of one block of Q4_K are 432 bytes, which the alignment makes 448.
	binary.LittleEndian.PutUint64(content[bytes.Index(content, []byte("norm"))+4+4+8+4:], 448)
	binary.LittleEndian.PutUint64(content[bytes.Index(content, []byte("scalar"))+6+4+4:], 480)
	content = append(content, make([]byte, 64)...)
	c, err := ReadFile(writeFile(t, "some.gguf", content))
	require.NoError(t, err)

	var lines []string
	for _, tensor := range c.tensors {
		lines = append(lines, fmt.Sprintf("%s %v %v elements=%d bytes=%d bits=%v", tensor.Name, tensor.Encoding, tensor.Shape,
			tensor.Elements, tensor.Bytes, 8*float64(tensor.encoding.blockBytes)/float64(tensor.encoding.blockElements)))
	}
	assert.Equal(t, []string{
		"token_embd.weight Q4_K (3, 256) elements=768 bytes=432 bits=4.5",
		"norm F32 (3,) elements=3 bytes=12 bits=32",
		"scalar BF16 () elements=1 bytes=2 bits=16",
	}, lines)
	assert.Equal(t, int64(772), c.parameters())
	assert.Equal(t, alloc.Bytes(446), c.bytes())
	_, err = c.Architecture()
	assert.ErrorIs(t, err, ErrUnknownArchitecture)
}

func TestGGUFSaysWhatIsWrong(t *testing.T) {
	w := ggufTensor{"w", []uint64{8}, 0, 0}
	good := ggufBytes(nil, w)
	// patched is good with bytes changed at an offset.
	patched := func(at int, v any) []byte {
		b := bytes.Clone(good)
		_, _ = binary.Encode(b[at:], binary.LittleEndian, v)
		return b
	}
	key := func(value any) []byte { return ggufBytes([]ggufKey{{"k", value}}, w) }
	keyPatched := func(value any, at int, v any) []byte {
		b := key(value)
		_, _ = binary.Encode(b[24+8+1+at:], binary.LittleEndian, v)
		return b
	}
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":               {nil, "it does not begin with GGUF"},
		"magic":               {patched(0, []byte("GGML")), "it does not begin with GGUF"},
		"version 1":           {patched(4, uint32(1)), "GGUF version 1; versions 2 and 3"},
		"big-endian":          {patched(4, []byte{0, 0, 0, 3}), "big-endian"},
		"ends in the counts":  {good[:20], "byte 16: the file ends in the middle of its header"},
		"tensors without end": {patched(8, uint64(math.MaxUint64)), "0 metadata keys and 18446744073709551615 tensors, more than the 131072 of each"},
		"too many tensors":    {patched(8, uint64(1<<17)), "131072 tensors, more than its bytes can hold"},
		"too many keys":       {patched(16, uint64(1<<17)), "131072 metadata keys, more than its bytes can hold"},
		"keys without end":    {patched(16, uint64(1<<40)), "1099511627776 metadata keys and 1 tensors, more than the 131072 of each"},
		"key without end":     {keyPatched(uint8(1), -9, uint64(1<<63)), "metadata key 0, byte 32: a string of 9223372036854775808 bytes, but only"},
		"key of 64 KiB":       {ggufBytes([]ggufKey{{strings.Repeat("k", 1<<16), uint8(1)}}), "a name of 65536 bytes"},
		"key twice":           {ggufBytes([]ggufKey{{"k", uint8(1)}, {"k", uint8(2)}}), `metadata key "k": it is empty or occurs twice`},
		"value's type":        {keyPatched(uint8(1), 0, uint32(13)), `metadata key "k": unknown type 13`},
		"string without end":  {keyPatched("abc", 4, uint64(1<<50)), `metadata key "k": a string of 1125899906842624 bytes`},
		"array without end":   {keyPatched([]uint32{1}, 8, uint64(1<<62)), `metadata key "k": an array of 4611686018427387904 values`},
		"strings without end": {keyPatched([]string{"a"}, 16, uint64(1<<62)), `metadata key "k": a string of 4611686018427387904 bytes`},
		"array of arrays":     {keyPatched([]uint32{1}, 4, uint32(ggufArray)), `metadata key "k": an array of unknown type 9`},
		"alignment 0":         {ggufBytes([]ggufKey{{"general.alignment", uint32(0)}}, w), `"general.alignment": it is not a power of two`},
		"alignment 24":        {ggufBytes([]ggufKey{{"general.alignment", uint32(24)}}, w), `"general.alignment": it is not a power of two`},
		"alignment a string":  {ggufBytes([]ggufKey{{"general.alignment", "32"}}, w), `"general.alignment": it is not a power of two`},
		"5 dimensions":        {ggufBytes(nil, ggufTensor{"w", []uint64{1, 1, 1, 1, 1}, 0, 0}), `tensor "w": 5 dimensions; GGUF allows 4`},
		"length of 2^64-1":    {ggufHeader(nil, ggufTensor{"w", []uint64{math.MaxUint64}, 0, 0}), `tensor "w": dimension 0 has a length of`},
		"elements overflow":   {ggufHeader(nil, ggufTensor{"w", []uint64{1 << 30, 1 << 30, 1 << 30}, 0, 0}), `tensor "w": invalid shape (1073741824, 1073741824, 1073741824): the number of elements overflows`},
		"bytes overflow":      {ggufHeader(nil, ggufTensor{"w", []uint64{1 << 30, 1 << 30, 4}, 0, 0}), `overflows 64 bits`},
		"unknown type":        {ggufHeader(nil, ggufTensor{"w", []uint64{32}, 4, 0}), `tensor "w": unknown tensor type 4`},
		"rows and blocks":     {ggufHeader(nil, ggufTensor{"w", []uint64{128, 2}, 12, 0}), `tensor "w": rows of 128 elements do not fill whole blocks of 256, as Q4_K has them`},
		"name twice":          {ggufBytes(nil, w, ggufTensor{"w", []uint64{8}, 0, 32}), `tensor "w": the name occurs twice`},
		"overlap":             {ggufBytes(nil, w, ggufTensor{"v", []uint64{8}, 0, 0}), `tensor "v": its data begin at offset 0, but the data before it end at 32`},
		"hole":                {ggufBytes(nil, w, ggufTensor{"v", []uint64{8}, 0, 64}), `tensor "v": its data begin at offset 64, but the data before it end at 32`},
		"offset of 2^64-1":    {ggufHeader(nil, ggufTensor{"w", []uint64{8}, 0, math.MaxUint64}), `tensor "w": an offset of 18446744073709551615`},
		"truncated data":      {good[:len(good)-1], `tensor "w": its data of 32 bytes at offset 0 run past the end of the file`},
		"no data at all":      {ggufHeader(nil, w), `tensor "w": its data of 32 bytes at offset 0 run past the end of the file`},
		"truncated tensors":   {ggufHeader(nil, w)[:50], `tensor "w"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFile(writeFile(t, "bad.gguf", test.content))
			require.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "checkpoint: open bad.gguf: ")
			assert.ErrorIs(t, err, fs.ErrInvalid)
		})
	}
}

func TestGGUFGathersItsParts(t *testing.T) {
	part := func(no, count uint16, name string) string {
		keys := []ggufKey{{"split.no", no}, {"split.count", count}, {"split.tensors.count", int32(count)}}
		return string(ggufBytes(keys, ggufTensor{name, []uint64{8}, 0, 0}))
	}
	parts := map[string]string{"m-00001-of-00002.gguf": part(0, 2, "a"), "m-00002-of-00002.gguf": part(1, 2, "b")}
	dir := writeFolder(t, parts)
	for _, path := range []string{dir, filepath.Join(dir, "m-00001-of-00002.gguf"), filepath.Join(dir, "m-00002-of-00002.gguf")} {
		c, err := ReadFile(path)
		require.NoError(t, err)
		var names []string
		for _, tensor := range c.tensors {
			names = append(names, tensor.File+":"+tensor.Name)
		}
		assert.Equal(t, []string{"m-00001-of-00002.gguf:a", "m-00002-of-00002.gguf:b"}, names)
	}

	for name, test := range map[string]struct{ first, second, want string }{
		"missing":           {part(0, 2, "a"), "", "open part 2 of 2"},
		"the same tensor":   {part(0, 2, "a"), part(1, 2, "a"), `tensor "a": m-00001-of-00002.gguf holds it too`},
		"in another order":  {part(1, 2, "a"), part(0, 2, "b"), "its split.no is not 0"},
		"a name of its own": {part(0, 3, "a"), part(1, 3, "b"), `its name does not end in "-NNNNN-of-00003.gguf"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFolder(t, map[string]string{"m-00001-of-00002.gguf": test.first, "m-00002-of-00002.gguf": test.second})
			if test.second == "" {
				require.NoError(t, os.Remove(filepath.Join(dir, "m-00002-of-00002.gguf")))
			}
			_, err := ReadFile(filepath.Join(dir, "m-00001-of-00002.gguf"))
			require.ErrorContains(t, err, test.want)
		})
	}
}

func FuzzGGUF(f *testing.F) {
	f.Add(ggufBytes(nil))
	f.Add(ggufBytes(nil, ggufTensor{"w", []uint64{256, 2}, 12, 0}, ggufTensor{"v", []uint64{3}, 0, 288}))
	f.Add(ggufBytes([]ggufKey{{"general.architecture", "llama"}, {"k", []uint32{1, 2}}, {"t", []string{"a", "b"}}, {"x", 1.5}}))
	f.Add(llamaGGUF())
	f.Fuzz(func(t *testing.T, content []byte) {
		var g *ggufFile
		var err error
		heap := allocated(func() { g, err = readGGUF(bytes.NewReader(content), int64(len(content)), "fuzz") })
		if most := int64(1<<20 + 64*len(content)); heap > most {
			t.Fatalf("%d bytes allocated for a file of %d", heap, len(content))
		}
		if err != nil {
			return
		}
		for _, tensor := range g.tensors {
			if tensor.Offset+int64(tensor.Bytes) > int64(len(content)) {
				t.Fatalf("%+v runs past the end", tensor)
			}
		}
		if a, err := g.architecture(); err == nil {
			checkArchitecture(t, a)
		}
	})
}
