package tracker

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
)

// Copy copies all of src to the beginning of dst, both live. They may be of trackers of different devices:
// then the copy is direct where the devices can do that, and else goes through the host; and
// dst, if it has no label, gets one that says what it is a copy of. The copy is complete when
// Copy returns. It does not wait for work that streams other than the default one have queued.
//
// A copy is no event of the history, which has what takes and frees memory: a copy does neither, and most
// copies of a program are not made by Copy.
//
// Both have elements of one DType, or one of them is of Uint8. The errors are those of CopyIn.
func Copy(dst, src *Buffer) error {
	to, from := dst.tracker, src.tracker
	about := fmt.Sprintf("copy %v of %s to %v of %s", src, from.name, dst, to.name)
	switch {
	case !dst.isLive() || !src.isLive():
		return fmt.Errorf("%s: %w: it is freed", about, alloc.ErrUnknownPtr)
	case dst.DType() != src.DType() && dst.DType() != alloc.Uint8 && src.DType() != alloc.Uint8:
		return fmt.Errorf("%s: elements of %v: want %v", about, src.DType(), dst.DType())
	case src.Bytes() > dst.Bytes():
		return fmt.Errorf("%s: %w", about, &alloc.SizeError{Requested: src.Bytes(), Reason: "more than the buffer holds"})
	}
	err := errors.ErrUnsupported
	if peer, ok := alloc.As[ability.PeerCopier](to.device); ok {
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
	to, writes := alloc.As[alloc.Copier](dst.tracker.device)
	from, reads := alloc.As[alloc.Copier](src.tracker.device)
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

// nameCopy names a buffer without a label after the one that was copied to it.
func (b *Buffer) nameCopy(src *Buffer) {
	if b.Label() != "" {
		return
	}
	what := src.Label()
	if what == "" {
		what = fmt.Sprintf("%v %v", src.Kind(), src.Shape())
	}
	b.SetLabel(fmt.Sprintf("copy of %s on %s", what, src.tracker.name))
}
