package tracker

import (
	"encoding/binary"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// tensor is what a buffer holds, and what makes two buffers of one group.
type tensor struct {
	kind  Kind
	dtype alloc.DType
	shape alloc.Shape // never written
	each  alloc.Bytes // requested bytes of one buffer
}

// newTensor returns the tensor, if it may enter the ledger. The shape is the
// caller's: clone it to keep it.
func newTensor(shape alloc.Shape, dtype alloc.DType, kind Kind) (tensor, error) {
	if int(kind) >= len(kindNames) {
		return tensor{}, fmt.Errorf("%v: want one of the kinds of package tracker", kind)
	}
	each, err := shape.Bytes(dtype)
	return tensor{kind, dtype, shape, each}, err
}

// String does not let the caller's shape escape to the heap.
func (x tensor) String() string {
	return fmt.Sprintf("%v %v %v", x.kind, x.shape.Clone(), x.dtype)
}

func (x *tensor) equal(y *tensor) bool {
	return x.kind == y.kind && x.dtype == y.dtype && x.shape.Equal(y.shape)
}

// appendKey appends what is the same for equal tensors only.
func (x *tensor) appendKey(b []byte) []byte {
	b = append(b, byte(x.kind), byte(x.dtype))
	for _, dim := range x.shape {
		b = binary.AppendUvarint(b, uint64(dim))
	}
	return b
}

// tally turns a number of buffers into a count and bytes. A total of bytes stops
// at alloc.MaxBytes; what is live is always less.
func (x tensor) tally(n int64) Tally {
	if n > 0 && x.each > alloc.MaxBytes/alloc.Bytes(n) {
		return Tally{Count: n, Bytes: alloc.MaxBytes}
	}
	return Tally{Count: n, Bytes: alloc.Bytes(n) * x.each}
}
