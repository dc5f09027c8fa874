package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// safetensorsFile is a file with this header and so many bytes of data.
func safetensorsFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// writeFile writes a file into a new directory and returns its path.
func writeFile(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// allocated returns the bytes that f allocates on the heap, freed or not.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

func TestSafetensorsTellsTheTensors(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},
		"b.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
		"a.running_mean":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
		"empty":{"data_offsets":[16,16],"shape":[0,7],"dtype":"I64","unknown":{"a":[1]}},
		"packed":{"dtype":"F4","shape":[4],"data_offsets":[16,18]},
		"six":{"dtype":"F6_E3M2","shape":[8],"data_offsets":[18,24]}}    `
	c, err := ReadFile(writeFile(t, "some.safetensors", safetensorsFile(header, 24)))
	require.NoError(t, err)

	start := int64(8 + len(header))
	var lines []string
	for _, tensor := range c.tensors {
		lines = append(lines, fmt.Sprintf("%s %v %v elements=%d bytes=%d at=%d buffer=%t",
			tensor.Name, tensor.Encoding, tensor.Shape, tensor.Elements, tensor.Bytes, tensor.Offset-start, tensor.isBuffer()))
		assert.Equal(t, "some.safetensors", tensor.File)
	}
	assert.Equal(t, []string{
		"a.running_mean F32 () elements=1 bytes=4 at=0 buffer=true",
		"b.weight BF16 (2, 3) elements=6 bytes=12 at=4 buffer=false",
		"empty I64 (0, 7) elements=0 bytes=0 at=16 buffer=false",
		"packed F4 (4,) elements=4 bytes=2 at=16 buffer=false",
		"six F6_E3M2 (8,) elements=8 bytes=6 at=18 buffer=false",
	}, lines)

	assert.Equal(t, "safetensors", c.Format)
	assert.Equal(t, int64(18), c.parameters())
	assert.Equal(t, alloc.Bytes(24), c.bytes())
	totals := c.totals()
	require.Len(t, totals, 5)
	assert.Equal(t, total{safetensorsEncodings()["BF16"], 1, 6, 12}, totals[0])
	assert.Equal(t, "F6_E3M2", totals[1].encoding.name)
	assert.Equal(t, "I64", totals[4].encoding.name)
	_, err = c.Architecture()
	assert.ErrorIs(t, err, ErrNoArchitecture)
}

func TestSafetensorsSaysWhatIsWrong(t *testing.T) {
	// one is a header with tensor w of 4 bytes and what follows it.
	one := func(more string) string {
		return `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}` + more + `}`
	}
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":         {nil, "0 bytes are too few"},
		"only a length": {make([]byte, 8), "8 bytes are too few"},
		"no header":     {make([]byte, 9), `the header begins with '\x00'`},

		"over the limit":    {append(binary.LittleEndian.AppendUint64(nil, 100_000_001), "{}"...), "100000001 bytes, more than the 100000000"},
		"length of 2^64-1":  {append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "{}"...), "18446744073709551615 bytes, more than"},
		"truncated header":  {safetensorsFile(one(""), 4)[:30], "but only 22 follow: the file is truncated"},
		"header cut short":  {append(binary.LittleEndian.AppendUint64(nil, 20), one("")...), "ends before it is complete"},
		"truncated data":    {safetensorsFile(one(""), 3), `tensor "w": its data end at offset 4, but the file holds 3 bytes of data`},
		"trailing data":     {safetensorsFile(one(""), 9), "5 bytes at its end belong to no tensor"},
		"not JSON":          {safetensorsFile(`{"w":}`, 4), "not valid JSON"},
		"not UTF-8":         {safetensorsFile("{\"\xff\":1}", 4), "invalid UTF-8"},
		"more JSON":         {safetensorsFile(one("")+"{}", 4), "something follows the JSON at byte 54"},
		"tensor is a list":  {safetensorsFile(`{"w":[]}`, 4), `tensor "w": a JSON [ where a { belongs`},
		"unknown dtype":     {safetensorsFile(`{"w":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "w": unknown dtype "Q4"`},
		"dtype a number":    {safetensorsFile(`{"w":{"dtype":32,"shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "w": unknown dtype 32`},
		"no dtype":          {safetensorsFile(`{"w":{"shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "w": it needs a dtype, a shape`},
		"no shape":          {safetensorsFile(`{"w":{"dtype":"F32","data_offsets":[0,4]}}`, 4), `tensor "w": it needs a dtype, a shape`},
		"one offset":        {safetensorsFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}}`, 4), `tensor "w": it needs a dtype, a shape`},
		"three offsets":     {safetensorsFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}`, 4), `tensor "w": data_offsets: 8: want at most 2 whole numbers`},
		"negative length":   {safetensorsFile(`{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4), `tensor "w": shape: -1: want`},
		"length a fraction": {safetensorsFile(`{"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}`, 4), `tensor "w": shape: 1.0: want`},
		"length of 2^63":    {safetensorsFile(`{"w":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}}`, 4), `tensor "w": shape: 9223372036854775808: want`},
		"65 dimensions":     {safetensorsFile(`{"w":{"dtype":"F32","shape":[1`+strings.Repeat(",1", 64)+`],"data_offsets":[0,4]}}`, 4), `want at most 64`},
		"elements overflow": {safetensorsFile(`{"w":{"dtype":"F32","shape":[1073741824,1073741824,1073741824],"data_offsets":[0,4]}}`, 4), `tensor "w": invalid shape (1073741824, 1073741824, 1073741824): the number of elements overflows`},
		"bytes overflow":    {safetensorsFile(`{"w":{"dtype":"F64","shape":[1073741824,1073741824,4],"data_offsets":[0,4]}}`, 4), `tensor "w": the size of 4611686018427387904 elements of F64 overflows`},
		"half a byte":       {safetensorsFile(`{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2), `tensor "w": 3 elements do not fill whole blocks of 2`},
		"wrong size":        {safetensorsFile(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), `tensor "w": shape (2,) of F32 takes 8 bytes, but its data_offsets [0, 4] hold 4`},
		"end before begin":  {safetensorsFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4), `tensor "w": its data end at offset 0, before they begin at 4`},
		"overlap":           {safetensorsFile(one(`,"v":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}`), 6), `tensor "v": its data begin at offset 2, inside another tensor's, which end at 4`},
		"hole":              {safetensorsFile(one(`,"v":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}`), 7), `tensor "v": its data begin at offset 6 and leave a hole of 2 bytes`},
		"name twice":        {safetensorsFile(one(`,"w":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}`), 5), `duplicate object member name "w"`},
		"escaped name":      {safetensorsFile(one(`,"\u0077":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}`), 5), `duplicate object member name "w"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFile(writeFile(t, "bad.safetensors", test.content))
			require.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "checkpoint: open bad.safetensors: ")
			assert.ErrorIs(t, err, fs.ErrInvalid)
		})
	}
}

// sparseSafetensors writes a file with the header and a hole where data belong.
func sparseSafetensors(t testing.TB, header []byte, data int64) string {
	t.Helper()
	path := writeFile(t, "model.safetensors", append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	if err := os.Truncate(path, 8+int64(len(header))+data); err != nil {
		t.Skipf("no sparse file of %d bytes here: %v", data, err)
	}
	return path
}

func TestSafetensorsReadsNoData(t *testing.T) {
	header, data := manyTensors(80, 875_000_000)
	require.Equal(t, int64(140_000_000_000), data)
	path := sparseSafetensors(t, header, data)
	var c *File
	heap := allocated(func() {
		var err error
		c, err = ReadFile(path)
		require.NoError(t, err)
	})
	assert.Equal(t, int64(70_000_000_000), c.parameters())
	assert.Equal(t, alloc.Bytes(data), c.bytes())
	assert.Less(t, heap, int64(1<<20))
}

func TestSafetensorsDoesNotTrustTheHeadersLength(t *testing.T) {
	path := writeFile(t, "lie.safetensors", append(binary.LittleEndian.AppendUint64(nil, maxSafetensorsHeader), '{'))
	require.NoError(t, os.Truncate(path, 1<<30))
	heap := allocated(func() {
		_, err := ReadFile(path)
		assert.ErrorContains(t, err, "not valid JSON")
	})
	assert.Less(t, heap, int64(1<<20))
}

// manyTensors is a header of n tensors of BF16 with so many elements each, and the
// size of their data.
func manyTensors(n int, elements int64) (header []byte, data int64) {
	var b bytes.Buffer
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	for i := range n {
		fmt.Fprintf(&b, `,"model.layers.%d.mlp.experts.%d.gate_proj.weight":{"dtype":"BF16","shape":[%d,1],"data_offsets":[%d,%d]}`,
			i/64, i%64, elements, data, data+2*elements)
		data += 2 * elements
	}
	b.WriteString("}")
	return b.Bytes(), data
}

func FuzzSafetensors(f *testing.F) {
	f.Add(safetensorsFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	f.Add(safetensorsFile(`{"__metadata__":{"a":"b"},"v":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]},"w":{"dtype":"I64","shape":[0],"data_offsets":[3,3]}}`, 3))
	f.Add(safetensorsFile(`{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}`, 4))
	f.Add(append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), '{'))
	f.Fuzz(func(t *testing.T, content []byte) {
		var tensors []tensorInfo
		var err error
		heap := allocated(func() {
			tensors, err = readSafetensors(bytes.NewReader(content), int64(len(content)), "fuzz")
		})
		if most := int64(1<<20 + 64*len(content)); heap > most {
			t.Fatalf("%d bytes allocated for a file of %d", heap, len(content))
		}
		if err == nil {
			checkTiling(t, tensors, int64(len(content)))
		}
	})
}

// checkTiling checks that tensors follow each other up to the end of the file.
func checkTiling(t *testing.T, tensors []tensorInfo, size int64) {
	for i, tensor := range tensors {
		end := size
		if i+1 < len(tensors) {
			end = tensors[i+1].Offset
		}
		if tensor.Offset+int64(tensor.Bytes) != end {
			t.Fatalf("tensor %d of %d: %+v does not end at %d", i, len(tensors), tensor, end)
		}
	}
}

func BenchmarkReadFile(b *testing.B) {
	b.Run("safetensors", func(b *testing.B) {
		header, data := manyTensors(10_000, 1024)
		path := sparseSafetensors(b, header, data)
		b.SetBytes(int64(len(header)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ReadFile(path); err != nil {
				b.Fatal(err)
			}
		}
	})
}
