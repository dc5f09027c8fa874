package checkpoint

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const (
	maxGGUFHeader = 100_000_000 // bytes, the same limit as for safetensors; a vocabulary takes some 10 MB
	maxGGUFName   = 1<<16 - 1   // bytes of a key or a name: the format's limit for keys
	maxGGUFText   = 1 << 16     // bytes of a string value that are kept; templates are longer
)

// ggufReader reads the primitives of GGUF, little-endian, front to back. Before it
// takes or skips anything it holds the length that the file states against the
// bytes that are left.
type ggufReader struct {
	r    *bufio.Reader
	at   int64 // offset in the file
	left int64 // bytes up to the file's end or the largest header
}

var errGGUFShort = errors.New("the file ends in the middle of its header, or the header is larger than 100 MB")

func newGGUFReader(r io.ReaderAt, size int64) *ggufReader {
	most := min(size, maxGGUFHeader)
	return &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, most), 1<<16), left: most}
}

// take returns the next n bytes, at most 8; they hold until the next call.
func (r *ggufReader) take(n int64) ([]byte, error) {
	if n > r.left {
		return nil, errGGUFShort
	}
	b, err := r.r.Peek(int(n))
	if err != nil {
		return nil, err
	}
	return b, r.skip(n)
}

func (r *ggufReader) skip(n int64) error {
	if n > r.left {
		return errGGUFShort
	}
	// Discard takes an int, which may have 32 bits; n is below 2^31.
	_, err := r.r.Discard(int(n))
	r.at += n
	r.left -= n
	return err
}

// word reads a number of 1, 2, 4 or 8 bytes without interpreting it.
func (r *ggufReader) word(size int64) (uint64, error) {
	b, err := r.take(size)
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.LittleEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.LittleEndian.Uint32(b)), nil
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (r *ggufReader) uint32() (uint32, error) {
	n, err := r.word(4)
	return uint32(n), err
}

func (r *ggufReader) uint64() (uint64, error) { return r.word(8) }

// textLength reads the length that precedes a string's bytes.
func (r *ggufReader) textLength() (int64, error) {
	n, err := r.uint64()
	if err == nil && n > uint64(r.left) {
		err = fmt.Errorf("a string of %d bytes, but only %d follow: truncated, or the header lies", n, r.left)
	}
	return int64(n), err
}

// name reads a key or a tensor's name.
func (r *ggufReader) name() (string, error) {
	n, err := r.textLength()
	if err != nil {
		return "", err
	}
	if n > maxGGUFName {
		return "", fmt.Errorf("a name of %d bytes, more than %d", n, maxGGUFName)
	}
	return r.bytes(n)
}

// text reads a string value, and gives "" for one that is too long to be wanted.
func (r *ggufReader) text() (string, error) {
	n, err := r.textLength()
	if err != nil {
		return "", err
	}
	if n > maxGGUFText {
		return "", r.skip(n)
	}
	return r.bytes(n)
}

func (r *ggufReader) skipText() error {
	n, err := r.textLength()
	if err != nil {
		return err
	}
	return r.skip(n)
}

// bytes reads n bytes that are known to be there.
func (r *ggufReader) bytes(n int64) (string, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(r.r, b)
	r.at += n
	r.left -= n
	return string(b), err
}

const maxGGUFValues = 1 << 12 // length of an array whose values are kept; vocabularies are longer

// ggufValue is one value of the metadata: of an array its type and length, and its
// values if it is a short one of whole numbers.
type ggufValue struct {
	kind   uint32 // type of the value, or of the array's elements
	array  bool
	length uint64   // length of the array
	words  []uint64 // as stored: one, or several for a short array of whole numbers
	text   string
}

// value reads a metadata value.
func (r *ggufReader) value() (ggufValue, error) {
	kind, err := r.uint32()
	if err != nil {
		return ggufValue{}, err
	}
	if kind == ggufArray {
		return r.array()
	}
	v := ggufValue{kind: kind, length: 1}
	switch {
	case kind == ggufString:
		v.text, err = r.text()
		return v, err
	case kind >= uint32(len(ggufSizes)):
		return v, fmt.Errorf("unknown type %d", kind)
	}
	word, err := r.word(ggufSizes[kind])
	v.words = []uint64{word}
	return v, err
}

// array reads an array. The format allows arrays of arrays, but llama.cpp loads none
// and no model has one, so they are refused.
func (r *ggufReader) array() (ggufValue, error) {
	kind, err := r.uint32()
	if err != nil {
		return ggufValue{}, err
	}
	v := ggufValue{kind: kind, array: true}
	if v.length, err = r.uint64(); err != nil {
		return v, err
	}
	if kind >= uint32(len(ggufSizes)) || kind == ggufArray {
		return v, fmt.Errorf("an array of unknown type %d", kind)
	}
	size := max(ggufSizes[kind], 1)
	if v.length > uint64(r.left/size) {
		return v, fmt.Errorf("an array of %d values, but only %d bytes follow: truncated, or the header lies", v.length, r.left)
	}
	switch {
	case kind == ggufString:
		for range v.length {
			if err := r.skipText(); err != nil {
				return v, err
			}
		}
		return v, nil
	case kind == ggufFloat32 || kind == ggufFloat64 || v.length > maxGGUFValues:
		return v, r.skip(int64(v.length) * size)
	}
	v.words = make([]uint64, v.length)
	for i := range v.words {
		if v.words[i], err = r.word(size); err != nil {
			return v, err
		}
	}
	return v, nil
}

// whole returns the value as a whole number that is not negative, or each of an
// array's if they are all the same.
func (v ggufValue) whole() (int, error) {
	if len(v.words) == 0 || v.kind == ggufFloat32 || v.kind == ggufFloat64 || v.kind == ggufBool {
		return 0, fmt.Errorf("is not a whole number")
	}
	for _, word := range v.words[1:] {
		if word != v.words[0] {
			return 0, fmt.Errorf("differs from layer to layer, which is not supported")
		}
	}
	n := v.words[0]
	if n > math.MaxInt || n>>(8*ggufSizes[v.kind]-1) != 0 && v.signed() {
		return 0, fmt.Errorf("is out of range")
	}
	return int(n), nil
}

func (v ggufValue) signed() bool {
	return v.kind == ggufInt8 || v.kind == ggufInt16 || v.kind == ggufInt32 || v.kind == ggufInt64
}

// ggufEncodings has the tensor types of GGUF by their number: block size and bytes a
// block as ggml's table of types has them (ggml/src/ggml.c, type_traits; the
// structures are in ggml/src/ggml-common.h). Numbers that ggml has withdrawn are
// left out: their tensors cannot be loaded any more.
var ggufEncodings = map[uint32]blockType{
	0:  {"F32", alloc.Float32, 1, 4},
	1:  {"F16", alloc.Float16, 1, 2},
	2:  {"Q4_0", 0, 32, 18},
	3:  {"Q4_1", 0, 32, 20},
	6:  {"Q5_0", 0, 32, 22},
	7:  {"Q5_1", 0, 32, 24},
	8:  {"Q8_0", 0, 32, 34},
	9:  {"Q8_1", 0, 32, 36},
	10: {"Q2_K", 0, 256, 84},
	11: {"Q3_K", 0, 256, 110},
	12: {"Q4_K", 0, 256, 144},
	13: {"Q5_K", 0, 256, 176},
	14: {"Q6_K", 0, 256, 210},
	15: {"Q8_K", 0, 256, 292},
	16: {"IQ2_XXS", 0, 256, 66},
	17: {"IQ2_XS", 0, 256, 74},
	18: {"IQ3_XXS", 0, 256, 98},
	19: {"IQ1_S", 0, 256, 50},
	20: {"IQ4_NL", 0, 32, 18},
	21: {"IQ3_S", 0, 256, 110},
	22: {"IQ2_S", 0, 256, 82},
	23: {"IQ4_XS", 0, 256, 136},
	24: {"I8", alloc.Int8, 1, 1},
	25: {"I16", alloc.Int16, 1, 2},
	26: {"I32", alloc.Int32, 1, 4},
	27: {"I64", alloc.Int64, 1, 8},
	28: {"F64", alloc.Float64, 1, 8},
	29: {"IQ1_M", 0, 256, 56},
	30: {"BF16", alloc.BFloat16, 1, 2},
	34: {"TQ1_0", 0, 256, 54},
	35: {"TQ2_0", 0, 256, 66},
	39: {"MXFP4", 0, 32, 17},
	40: {"NVFP4", 0, 64, 36},
	41: {"Q1_0", 0, 128, 18},
	42: {"Q2_0", 0, 64, 18},
}

// The types of a metadata value.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ggufSizes has the bytes of the metadata types that have a fixed size.
var ggufSizes = [...]int64{
	ggufUint8: 1, ggufInt8: 1, ggufUint16: 2, ggufInt16: 2, ggufUint32: 4, ggufInt32: 4,
	ggufFloat32: 4, ggufBool: 1, ggufString: 0, ggufArray: 0, ggufUint64: 8, ggufInt64: 8, ggufFloat64: 8,
}
