package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// reservation records which chunks of reserved addresses have memory, since the driver does not say. Chunks are given by
// their offset. A call that fails is undone. If the undoing fails too, the driver has memory behind chunks that
// the caller was told have none: it is taken away as soon as the driver allows.
type reservation struct {
	base        alloc.Ptr
	size, chunk alloc.Bytes
	mapped      map[alloc.Bytes]bool // as the caller was told
	behind      map[alloc.Bytes]bool // as the driver has it
}

// Reserve returns n bytes of addresses by cuMemAddressReserve. The error is errors.ErrUnsupported if
// the driver has no virtual memory (before CUDA 10.2), or if chunk is not a multiple of the
// driver's own unit, which happens with no known driver. It is alloc.ErrSize if n is not a positive
// multiple of chunk, or chunk not one of 2 MiB. The other errors are those of Alloc.
func (d *gpu) Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error) {
	if chunk <= 0 || chunk%(2*alloc.MiB) != 0 || n <= 0 || n%chunk != 0 {
		return 0, fmt.Errorf("%w of %d bytes: addresses in chunks of %v, of a multiple of 2 MiB", alloc.ErrSize, n, chunk)
	}
	if d.driver.addressReserve == 0 {
		return 0, fmt.Errorf("reserve %v of addresses on %v: the driver has no virtual memory: %w", n, d, errors.ErrUnsupported)
	}
	var p uint64
	err := d.do(func() error {
		dev, err := d.driver.currentDevice()
		if err != nil {
			return err
		}
		unit, err := d.driver.granularity(dev)
		if err == nil && (unit == 0 || uint64(chunk)%unit != 0) {
			err = fmt.Errorf("the driver maps whole units of %v, and chunks of %v are none: %w", alloc.Bytes(unit), chunk, errors.ErrUnsupported)
		}
		if err == nil {
			p, err = d.driver.reserve(int64(n))
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reserve %v of addresses on %v: %w", n, d, mapped(err))
	}
	d.reservedMu.Lock()
	defer d.reservedMu.Unlock()
	if d.reserved == nil {
		d.reserved = make(map[alloc.Ptr]*reservation)
	}
	d.reserved[alloc.Ptr(p)] = &reservation{
		base: alloc.Ptr(p), size: n, chunk: chunk, mapped: make(map[alloc.Bytes]bool), behind: make(map[alloc.Bytes]bool),
	}
	return alloc.Ptr(p), nil
}

// Release gives addresses back by cuMemAddressFree. Those that are mapped, or that Reserve did not
// give, are alloc.ErrUnknownPtr. After another error they are still reserved: call it again.
func (d *gpu) Release(p alloc.Ptr) error {
	d.reservedMu.Lock()
	defer d.reservedMu.Unlock()
	r := d.reserved[p]
	err := error(codeInvalidValue)
	if r != nil && len(r.mapped) == 0 {
		err = d.do(func() error {
			if err := d.reconcile(r); err != nil {
				return err
			}
			return d.driver.releaseAddresses(uint64(p), int64(r.size))
		})
	}
	if err != nil {
		return fmt.Errorf("release addresses at %v on %v: %w", p, d, mappedAddress(err))
	}
	delete(d.reserved, p)
	return nil
}

// Reconcile asks the driver again to take back what an earlier call could neither finish nor undo. The
// error says that the driver still refuses: call it again.
func (d *gpu) Reconcile() error {
	d.reservedMu.Lock()
	defer d.reservedMu.Unlock()
	var errs []error
	for p, r := range d.reserved {
		if err := d.do(func() error { return d.reconcile(r) }); err != nil {
			errs = append(errs, fmt.Errorf("take memory at %v from %v: %w", p, d, mappedAddress(err)))
		}
	}
	d.events.mu.Lock()
	left := len(d.events.undestroyed)
	d.events.mu.Unlock()
	if left > 0 {
		if err := d.do(d.retryDestroys); err != nil {
			errs = append(errs, fmt.Errorf("destroy %d events of %v: %w", left, d, mapped(err)))
		}
	}
	return errors.Join(errs...)
}

// reconcile makes the driver map exactly the chunks of r that the caller believes to be mapped. The caller holds reservedMu.
func (d *gpu) reconcile(r *reservation) error {
	var errs []error
	for at := range r.behind {
		if !r.mapped[at] {
			errs = append(errs, d.unmapChunk(r, at))
		}
	}
	d.unreleased = slices.DeleteFunc(d.unreleased, func(handle uint64) bool {
		err := d.driver.memRelease.call(uintptr(handle))
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// Map puts memory behind n bytes at p, by cuMemCreate and cuMemMap for each chunk. The errors are
// *alloc.OutOfMemoryError with the driver's numbers, alloc.ErrUnknownPtr if the range is not
// whole chunks that all lack memory, and those of Free.
func (d *gpu) Map(p alloc.Ptr, n alloc.Bytes) error {
	err := d.change(p, n, true, d.mapChunks)
	if errors.Is(err, codeOutOfMemory) {
		return d.outOfMemory(n, err)
	}
	if err != nil {
		return fmt.Errorf("map %v at %v on %v: %w", n, p, d, mappedAddress(err))
	}
	return nil
}

// mapChunks maps all of the chunks or none. Chunks that it cannot unmap again are left to reconcile.
func (d *gpu) mapChunks(r *reservation, from, to alloc.Bytes) error {
	dev, err := d.driver.currentDevice()
	for at := from; err == nil && at < to; at += r.chunk {
		if !r.behind[at] {
			err = d.mapChunk(r, at, dev)
		}
	}
	if err == nil {
		err = d.driver.open(uint64(r.base)+uint64(from), int64(to-from), dev)
	}
	for at := from; err != nil && at < to; at += r.chunk {
		if r.behind[at] && !r.mapped[at] {
			err = errors.Join(err, d.unmapChunk(r, at))
		}
	}
	return err
}

// Unmap takes the memory behind n bytes at p, when all work in the context is done, by
// cuMemUnmap. The error is alloc.ErrUnknownPtr if the range is not whole chunks that all have memory.
func (d *gpu) Unmap(p alloc.Ptr, n alloc.Bytes) error {
	err := d.change(p, n, false, func(r *reservation, from, to alloc.Bytes) error {
		if err := d.driver.synchronize(); err != nil { // which cuMemUnmap does not do
			return err
		}
		return d.unmapChunks(r, from, to)
	})
	if err != nil {
		return fmt.Errorf("unmap %v at %v on %v: %w", n, p, d, mappedAddress(err))
	}
	return nil
}

// unmapChunks unmaps one chunk after the other, since the driver does not unmap a part of a mapping. If it fails, the
// chunks unmapped so far get new memory: what was in the old is not needed.
func (d *gpu) unmapChunks(r *reservation, from, to alloc.Bytes) error {
	for at := from; at < to; at += r.chunk {
		if !r.behind[at] {
			continue
		}
		if err := d.unmapChunk(r, at); err != nil {
			if at > from {
				err = errors.Join(err, d.mapChunks(r, from, at))
			}
			return err
		}
	}
	return nil
}

// change calls the driver to map whole chunks, none of which is mapped, or to unmap chunks that
// all are.
func (d *gpu) change(p alloc.Ptr, n alloc.Bytes, mapped bool, call func(r *reservation, from, to alloc.Bytes) error) error {
	d.reservedMu.Lock()
	defer d.reservedMu.Unlock()
	r, offset := d.reservation(p)
	if r == nil || n <= 0 || n > r.size-offset || offset%r.chunk != 0 || n%r.chunk != 0 {
		return fmt.Errorf("not whole chunks of reserved addresses: %w", codeInvalidValue)
	}
	for at := offset; at < offset+n; at += r.chunk {
		if r.mapped[at] == mapped {
			return fmt.Errorf("the chunk at %v is mapped: %v: %w", p+alloc.Ptr(at-offset), mapped, codeInvalidValue)
		}
	}
	if err := d.do(func() error { return call(r, offset, offset+n) }); err != nil {
		return err
	}
	for at := offset; at < offset+n; at += r.chunk {
		if mapped {
			r.mapped[at] = true
		} else {
			delete(r.mapped, at)
		}
	}
	return nil
}

// reservation returns the one that an address lies in, and how far in, or nil.
func (d *gpu) reservation(p alloc.Ptr) (*reservation, alloc.Bytes) {
	for base, r := range d.reserved {
		if p >= base && alloc.Bytes(p-base) < r.size {
			return r, alloc.Bytes(p - base)
		}
	}
	return nil, 0
}

// mapChunk maps new memory. Its handle is given back at once, so that the mapping alone keeps it; one that the
// driver does not take is left for reconcile.
func (d *gpu) mapChunk(r *reservation, at alloc.Bytes, dev device) error {
	var handle uint64
	properties := allocationProperties{kind: allocationPinned, location: location{locationDevice, int32(dev)}}
	if err := d.driver.memCreate.call(uintptr(unsafe.Pointer(&handle)), uintptr(r.chunk), uintptr(unsafe.Pointer(&properties)), 0); err != nil {
		return err
	}
	err := d.driver.memMap.call(uintptr(r.base)+uintptr(at), uintptr(r.chunk), 0, uintptr(handle), 0)
	if err == nil {
		r.behind[at] = true
	}
	if released := d.driver.memRelease.call(uintptr(handle)); released != nil {
		d.unreleased = append(d.unreleased, handle)
		err = errors.Join(err, released)
	}
	return err
}

func (d *gpu) unmapChunk(r *reservation, at alloc.Bytes) error {
	err := d.driver.unmap(uint64(r.base)+uint64(at), int64(r.chunk))
	if err == nil {
		delete(r.behind, at)
	}
	return err
}
