//go:build !windows

package memtrack_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ggufKey is a key of a GGUF file's metadata. Its value is a string, an int, a float32, a bool, or a slice of int or bool.
type ggufKey struct {
	name  string
	value any
}

// ggufTensor is a tensor in float16, or in float32 if it is a vector. The first dimension is the innermost one.
type ggufTensor struct {
	name string
	dims []uint64
}

// isHalf reports whether the elements have two bytes.
func (t ggufTensor) isHalf() bool {
	return len(t.dims) > 1 && !strings.Contains(t.name, "ssm_") && !strings.Contains(t.name, "shortconv.conv") && !strings.Contains(t.name, "ffn_gate_inp")
}

func (t ggufTensor) bytes() uint64 {
	n := uint64(4)
	if t.isHalf() {
		n = 2
	}
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// parseTensors reads a list such as "attn_q 64 64, attn_q.bias 64". Names get the prefix, and ".weight" unless
// they have a dot, or end in "!".
func parseTensors(prefix, list string) (all []ggufTensor) {
	for entry := range strings.SplitSeq(list, ",") {
		fields := strings.Fields(entry)
		if len(fields) == 0 {
			continue
		}
		t := ggufTensor{name: prefix + fields[0]}
		if name, bare := strings.CutSuffix(fields[0], "!"); bare {
			t.name = prefix + name
		} else if !strings.Contains(fields[0], ".") {
			t.name += ".weight"
		}
		for _, f := range fields[1:] {
			d, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				panic(err)
			}
			t.dims = append(t.dims, d)
		}
		all = append(all, t)
	}
	return all
}

// writeGGUF writes a model whose weights are zeros, which take no place on the disk.
func writeGGUF(t *testing.T, path string, keys []ggufKey, tensors []ggufTensor) {
	const alignment = 32
	const isUint32, isFloat32, isBool, isString, isArray = uint32(4), uint32(6), uint32(7), uint32(8), uint32(9)
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
	put(uint32(3), uint64(len(tensors)), uint64(len(keys)))
	for _, k := range keys {
		put(k.name)
		switch v := k.value.(type) {
		case string:
			put(isString, v)
		case int:
			put(isUint32, uint32(v))
		case float32:
			put(isFloat32, v)
		case bool:
			put(isBool, v)
		case []int:
			put(isArray, isUint32, uint64(len(v)))
			for _, n := range v {
				put(uint32(n))
			}
		case []bool:
			put(isArray, isBool, uint64(len(v)), v)
		case []float32:
			put(isArray, isFloat32, uint64(len(v)), v)
		default:
			require.Fail(t, "no type of GGUF", "%s: %T", k.name, v)
		}
	}
	end := uint64(0)
	for _, x := range tensors {
		kind := uint32(0)
		if x.isHalf() {
			kind = 1
		}
		put(x.name, uint32(len(x.dims)), x.dims, kind, end)
		end = (end + x.bytes() + alignment - 1) / alignment * alignment
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, b, 0o644))
	require.NoError(t, os.Truncate(path, int64((uint64(len(b))+alignment-1)/alignment*alignment+end)))
}

// blocks returns the tensors of numbered blocks, each a list.
func blocks(lists ...string) (all []ggufTensor) {
	for i, list := range lists {
		all = append(all, parseTensors(fmt.Sprintf("blk.%d.", i), list)...)
	}
	return all
}
