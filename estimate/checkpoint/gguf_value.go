package checkpoint

import (
	"fmt"
	"math"
)

const maxGGUFValues = 1 << 12 // length of an array whose values are kept; vocabularies are longer

// ggufValue is one value of the metadata: of an array its type and length, and its
// values if it is a short one of whole numbers.
type ggufValue struct {
	kind   uint32 // of the value, or of the array's values
	array  bool
	length uint64   // of the array
	words  []uint64 // as stored: one, or those of a short array of whole numbers
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
