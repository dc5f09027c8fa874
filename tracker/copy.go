package tracker

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// CopyIn copies src to the beginning of a live buffer's memory:
//
//	w, err := tracker.Make[float32](tr, 64, 3, 3, 3)
//	err = tracker.CopyIn(w, weights)
//
// T must be stored as the buffer's DType; a buffer of Uint8, as AllocBytes gives, takes any T. The
// copy is complete when CopyIn returns. It does not wait for work that streams other than the
// default one have queued.
//
// The error is a *alloc.SizeError if src is larger than the buffer, alloc.ErrUnknownPtr for a buffer
// that is freed, and errors.ErrUnsupported for a device that cannot copy; nothing is copied then.
func CopyIn[T alloc.Element](b *Buffer, src []T) error {
	return b.copy("copy in", alloc.DTypeOf[T](), bytesOf(src), alloc.Copier.CopyToDevice)
}

// CopyOut fills dst from the beginning of a live buffer's memory, with CopyIn's rules and errors.
func CopyOut[T alloc.Element](b *Buffer, dst []T) error {
	return b.copy("copy out", alloc.DTypeOf[T](), bytesOf(dst), func(c alloc.Copier, p alloc.Ptr, dst []byte) error {
		return c.CopyToHost(dst, p)
	})
}

// bytesOf returns the memory of the elements.
func bytesOf[T alloc.Element](elements []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(elements))), len(elements)*int(unsafe.Sizeof(one)))
}

func (b *Buffer) copy(what string, dtype alloc.DType, host []byte, move func(alloc.Copier, alloc.Ptr, []byte) error) error {
	t := b.tracker
	live := b.isLive()
	copier, ok := alloc.As[alloc.Copier](t.device)
	switch n := alloc.Bytes(len(host)); {
	case !live:
		return fmt.Errorf("%s: %v: %w: it is freed", what, b, alloc.ErrUnknownPtr)
	case dtype != b.DType() && b.DType() != alloc.Uint8:
		return fmt.Errorf("%s: %v: elements of %v: want %v", what, b, dtype, b.DType())
	case n > b.Bytes():
		return fmt.Errorf("%s: %v: %w", what, b, &alloc.SizeError{Requested: n, Reason: "more than the buffer holds"})
	case !ok:
		return fmt.Errorf("%s: %v: %s cannot copy: %w", what, b, t.name, errors.ErrUnsupported)
	}
	if err := move(copier, b.ptr, host); err != nil {
		return fmt.Errorf("%s: %v: %w", what, b, err)
	}
	return nil
}
