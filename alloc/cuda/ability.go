package cuda

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Synchronize waits until all work in the context, on every stream, is done. An
// error may be that of work queued earlier.
func (d *gpu) Synchronize() error {
	if err := d.do(d.driver.synchronize); err != nil {
		return fmt.Errorf("synchronize %v: %w", d, mapped(err))
	}
	return nil
}

// CopyToDevice copies src to the device. The error is alloc.ErrUnknownPtr when
// the bytes at dst are not all inside one allocation.
func (d *gpu) CopyToDevice(dst alloc.Ptr, src []byte) error {
	return d.copy(dst, len(src), func() error { return d.driver.copyToDevice(uint64(dst), src) })
}

// CopyToHost fills dst from the device, with CopyToDevice's errors.
func (d *gpu) CopyToHost(dst []byte, src alloc.Ptr) error {
	return d.copy(src, len(dst), func() error { return d.driver.copyToHost(dst, uint64(src)) })
}

func (d *gpu) copy(p alloc.Ptr, n int, move func() error) error {
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		return move()
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes at %v on %v: %w", n, p, d, mappedAddress(err))
	}
	return nil
}

// Fill queues work on stream s that sets n bytes at p to value, by cuMemsetD8Async. The errors are
// those of CopyToDevice.
func (d *gpu) Fill(p alloc.Ptr, n alloc.Bytes, value byte, s alloc.Stream) error {
	if n < 0 {
		return fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		return d.driver.fill(uint64(p), int64(n), value, s)
	})
	if err != nil {
		return fmt.Errorf("fill %v at %v on stream %#x of %v: %w", n, p, uint64(s), d, mappedAddress(err))
	}
	return nil
}

// CopyFrom copies by cuMemcpyPeer, and waits until it is done. from is a Device, or a device over one.
// The errors are CopyToDevice's, and errors.ErrUnsupported for any other device.
func (d *gpu) CopyFrom(dst alloc.Ptr, from alloc.Device, src alloc.Ptr, n alloc.Bytes) error {
	peer, ok := alloc.As[*gpu](from)
	if !ok {
		return fmt.Errorf("copy %v from %s to %v: not a CUDA device: %w", n, text.Line(from.Name()), d, errors.ErrUnsupported)
	}
	err := d.do(func() error {
		if n == 0 {
			return nil
		}
		if err := d.driver.copyPeer(uint64(dst), d.context, uint64(src), peer.context, int64(n)); err != nil {
			return err
		}
		return d.driver.synchronize()
	})
	if err != nil {
		return fmt.Errorf("copy %v at %v on %v to %v on %v: %w", n, src, peer, dst, d, mappedAddress(err))
	}
	return nil
}
