package tables

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Tensor describes the content of a buffer. Buffers with equal tensors are one group.
type Tensor struct {
	Kind  mem.Kind
	DType alloc.DType // not valid where it is not known
	// Memory is the type of memory that it is in. It stands here because this struct has padding for it and an event
	// has none.
	Memory alloc.Memory
	Shape  alloc.Shape // shared: do not write
	Each   alloc.Bytes // requested bytes of one buffer
}

// NewTensor returns the description of a tensor. The error is alloc.ErrShape, or says what is wrong
// with the kind. It keeps the caller's shape: clone the shape first if it may change. The caller
// sets Memory.
func NewTensor(shape alloc.Shape, dtype alloc.DType, kind mem.Kind) (Tensor, error) {
	x := Tensor{Kind: kind, DType: dtype, Shape: shape}
	if err := x.Measure(); err != nil {
		return Tensor{}, err
	}
	return x, nil
}

// Measure sets Each. Its errors are those of NewTensor.
func (x *Tensor) Measure() (err error) {
	if err = kinds.Check(string(x.Kind)); err == nil {
		x.Each, err = x.Shape.Bytes(x.DType)
	}
	return err
}

// Untyped returns the tensor of a source that knows only the kind and the requested bytes of a
// buffer. Its DType is not valid, and its Shape is nil. A kind that is not valid and a
// negative size are errors.
func Untyped(kind mem.Kind, each alloc.Bytes) (Tensor, error) {
	if err := kinds.Check(string(kind)); err != nil {
		return Tensor{}, err
	}
	if each < 0 {
		return Tensor{}, fmt.Errorf("a buffer of %d bytes: want at least 0", int64(each))
	}
	return Tensor{Kind: kind, Each: each}, nil
}

// ReadTensor returns the tensor of a file.
func ReadTensor(shape alloc.Shape, dtype alloc.DType, kind mem.Kind, memory alloc.Memory, each alloc.Bytes) (x Tensor, err error) {
	if dtype == 0 {
		x, err = Untyped(kind, each)
	} else {
		x, err = NewTensor(shape, dtype, kind)
	}
	x.Memory = memory
	return x, err
}

// Unknown returns the requested bytes of a buffer if they do not follow from dtype and shape.
func (x *Tensor) Unknown() alloc.Bytes {
	if x.DType == 0 {
		return x.Each
	}
	return 0
}

// Clone returns a copy to keep: a part of the original that is kept would make the
// caller's shape escape to the heap at every Alloc.
func (x Tensor) Clone() Tensor {
	return Tensor{mem.Kind(strings.Clone(string(x.Kind))), x.DType, x.Memory, slices.Clone(x.Shape), x.Each}
}

// String prints kind, shape and dtype.
func (x Tensor) String() string {
	own := x.Clone()
	if own.DType == 0 {
		return fmt.Sprintf("%v %v", own.Kind, own.Each)
	}
	return fmt.Sprintf("%v %v %v", own.Kind, own.Shape, own.DType)
}

// Equal reports whether both have the same kind, dtype, memory, shape and bytes.
func (x *Tensor) Equal(y *Tensor) bool {
	return x.Kind == y.Kind && x.DType == y.DType && x.Memory == y.Memory && x.Each == y.Each && slices.Equal(x.Shape, y.Shape)
}

// EqualUnmeasured reports whether x is y, without comparing Each, which follows from dtype and shape.
func (x *Tensor) EqualUnmeasured(y *Tensor) bool {
	return x.Kind == y.Kind && x.DType == y.DType && x.DType != 0 && x.Memory == y.Memory && slices.Equal(x.Shape, y.Shape)
}

// AppendKey appends what is the same for equal tensors only.
func (x *Tensor) AppendKey(b []byte) []byte {
	b = append(append(b, x.Kind...), 0, byte(x.DType), byte(x.Memory))
	for _, dim := range x.Shape {
		b = binary.AppendUvarint(b, uint64(dim))
	}
	return b
}

// Tally turns a number of buffers into a count and bytes. A total of bytes stops
// at math.MaxInt64; what is live is always less.
func (x Tensor) Tally(n int64) mem.Tally {
	if n > 0 && x.Each > math.MaxInt64/alloc.Bytes(n) {
		return mem.Tally{Count: n, Bytes: math.MaxInt64}
	}
	return mem.Tally{Count: n, Bytes: alloc.Bytes(n) * x.Each}
}
