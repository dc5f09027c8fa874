package tracker

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// CopyIn copies src to the beginning of a live buffer's memory:
//
//	w, err := tracker.Make[float32](tr, alloc.Shape{64, 3, 3, 3}, tracker.Parameter)
//	err = tracker.CopyIn(w, weights)
//
// T must be stored as the buffer's DType; a buffer of Uint8, as AllocBytes gives, takes any T. The
// copy is complete when CopyIn returns. It does not wait for work that streams other than the
// default one have queued.
//
// The error is alloc.ErrSize if src is larger than the buffer, alloc.ErrUnknownPtr for a buffer
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
	t := b.tracker()
	live := b.isLive()
	copier, ok := alloc.As[alloc.Copier](t.device)
	switch n := alloc.Bytes(len(host)); {
	case !live:
		return fmt.Errorf("%s: %v: %w: it is freed", what, b, alloc.ErrUnknownPtr)
	case dtype != b.DType() && b.DType() != alloc.Uint8:
		return fmt.Errorf("%s: %v: elements of %v: want %v", what, b, dtype, b.DType())
	case n > b.Bytes():
		return fmt.Errorf("%s: %v: %w of %d bytes: more than the buffer holds", what, b, alloc.ErrSize, n)
	case !ok:
		return fmt.Errorf("%s: %v: %s cannot copy: %w", what, b, t.name, errors.ErrUnsupported)
	}
	if err := move(copier, b.ptr, host); err != nil {
		return fmt.Errorf("%s: %v: %w", what, b, err)
	}
	return nil
}

// Copy copies all of src to the beginning of dst. Both must be live. They may belong to trackers of
// different devices: then the copy is direct if the devices can do that, and goes through the host
// otherwise. If dst has no label, it gets one that names src. The copy is complete when Copy
// returns. It does not wait for work that streams other than the default one have queued.
//
// The history has no event for a copy: it has what takes and frees memory.
//
// Both buffers have elements of one DType, or one of them is of Uint8. The errors are those of
// CopyIn.
func Copy(dst, src *Buffer) error {
	to, from := dst.tracker(), src.tracker()
	about := fmt.Sprintf("copy %v of %s to %v of %s", src, from.name, dst, to.name)
	switch {
	case !dst.isLive() || !src.isLive():
		return fmt.Errorf("%s: %w: it is freed", about, alloc.ErrUnknownPtr)
	case dst.DType() != src.DType() && dst.DType() != alloc.Uint8 && src.DType() != alloc.Uint8:
		return fmt.Errorf("%s: elements of %v: want %v", about, src.DType(), dst.DType())
	case src.Bytes() > dst.Bytes():
		return fmt.Errorf("%s: %w of %d bytes: more than the buffer holds", about, alloc.ErrSize, src.Bytes())
	}
	err := errors.ErrUnsupported
	if peer, ok := alloc.As[capability.PeerCopier](to.device); ok {
		err = peer.CopyFrom(dst.ptr, from.device, src.ptr, src.Bytes())
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = copyThroughHost(dst, src)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", about, err)
	}
	if !sameDevice(to.device, from.device) {
		dst.nameCopy(src)
	}
	return nil
}

const copyChunk = 16 << 20

func copyThroughHost(dst, src *Buffer) error {
	to, writes := alloc.As[alloc.Copier](dst.tracker().device)
	from, reads := alloc.As[alloc.Copier](src.tracker().device)
	if !writes || !reads {
		return fmt.Errorf("a device cannot copy: %w", errors.ErrUnsupported)
	}
	host := make([]byte, min(copyChunk, src.Bytes()))
	for at := alloc.Bytes(0); at < src.Bytes(); at += copyChunk {
		part := host[:min(copyChunk, src.Bytes()-at)]
		if err := from.CopyToHost(part, src.ptr+alloc.Ptr(at)); err != nil {
			return err
		}
		if err := to.CopyToDevice(dst.ptr+alloc.Ptr(at), part); err != nil {
			return err
		}
	}
	return nil
}

// nameCopy gives a buffer without a label the name of the buffer that was copied to it.
func (b *Buffer) nameCopy(src *Buffer) {
	if b.Allocation().Label != "" {
		return
	}
	from := src.Allocation()
	what := from.Label
	if what == "" {
		what = fmt.Sprintf("%v %v", from.Kind, from.Shape)
	}
	b.SetLabel(fmt.Sprintf("copy of %s on %s", what, src.tracker().name))
}
