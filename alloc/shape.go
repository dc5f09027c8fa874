package alloc

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Shape is the length of each dimension of a tensor, outermost first. A shape
// without dimensions is a scalar and has one element; a dimension of length
// zero makes a tensor without elements; a negative length is an error.
type Shape []int

// Elements returns the number of elements, the product of the dimensions.
// The error is ErrShape if a dimension is negative or the product does
// not fit in an int64.
func (s Shape) Elements() (int64, error) {
	// The errors here hold the shape's text and not the shape, so that a caller's literal stays off the heap.
	empty := false
	for i, dim := range s {
		if dim < 0 {
			return 0, fmt.Errorf("%w %v: dimension %d is negative", ErrShape, s.String(), i)
		}
		empty = empty || dim == 0
	}
	if empty {
		return 0, nil
	}
	n := uint64(1)
	for _, dim := range s {
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("%w %v: the number of elements overflows 64 bits", ErrShape, s.String())
		}
		n = lo
	}
	return int64(n), nil
}

// Bytes returns the memory that a dense tensor of this shape takes, packed
// types rounded up to a whole byte. The error is ErrShape if the shape is
// not valid, the type is not one of the package's, or the size does not fit.
func (s Shape) Bytes(d DType) (Bytes, error) {
	n, err := s.Elements()
	if err != nil {
		return 0, err
	}
	if d.Bits() == 0 {
		return 0, fmt.Errorf("%w %v: %v is not an element type: want one of package alloc's, such as Float32", ErrShape, s.String(), d)
	}
	hi, lo := bits.Mul64(uint64(n), uint64(d.Bits()))
	if hi > 3 { // lo and the two low bits of hi hold at most 8 * math.MaxInt64
		return 0, fmt.Errorf("%w %v: its size in %v overflows 64 bits", ErrShape, s.String(), d)
	}
	whole := hi<<61 | lo>>3
	if lo&7 != 0 {
		whole++
	}
	if whole > math.MaxInt64 {
		return 0, fmt.Errorf("%w %v: its size in %v overflows 64 bits", ErrShape, s.String(), d)
	}
	return Bytes(whole), nil
}

// String prints the shape as a Python tuple: "(64, 3, 3, 3)", "(512,)", "()".
func (s Shape) String() string { return string(s.Append(nil)) }

// Append appends the shape, printed as String does, to b.
func (s Shape) Append(b []byte) []byte {
	b = append(b, '(')
	for i, dim := range s {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(dim), 10)
	}
	if len(s) == 1 {
		b = append(b, ',')
	}
	return append(b, ')')
}

// ParseShape reads a shape as String prints it; "64x3x3x3" and "64, 3, 3, 3" are read too. The
// shape must be valid. A text that is not a shape is an error, a shape that is not valid
// ErrShape.
func ParseShape(text string) (Shape, error) {
	inner := strings.TrimSpace(text)
	if trimmed, ok := strings.CutPrefix(inner, "("); ok {
		if inner, ok = strings.CutSuffix(trimmed, ")"); !ok {
			return nil, fmt.Errorf("parse shape %q: missing ')'", text)
		}
	}
	inner = strings.TrimSpace(inner)
	if inner == "" {
		return Shape{}, nil
	}
	inner = strings.TrimSuffix(inner, ",")
	separator := ","
	if !strings.Contains(inner, ",") {
		separator = "x"
	}
	var s Shape
	for field := range strings.SplitSeq(inner, separator) {
		dim, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("parse shape %q: %q is not a length; want, for example, (64, 3, 3, 3)", text, field)
		}
		s = append(s, dim)
	}
	if _, err := s.Elements(); err != nil {
		return nil, fmt.Errorf("parse shape %q: %w", text, err)
	}
	return s, nil
}
