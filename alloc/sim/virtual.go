package sim

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

var _ capability.VirtualDevice = (*device)(nil)

// reservation is a range of addresses. Some of its chunks are mapped to memory.
type reservation struct {
	pages  span
	chunk  uint64 // in pages
	mapped map[uint64]struct{}
}

// Reserve returns n bytes of addresses, which Map can put memory behind. The errors are
// alloc.ErrSize for n that is not a positive multiple of chunk, or a chunk that is not a positive multiple
// of 2 MiB, alloc.ErrOutOfMemory when addresses run out,
// alloc.ErrClosed, and those of faults. There are 4 TiB of addresses.
func (d *device) Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error) {
	defer d.begin()()
	if err := d.enter("Reserve"); err != nil {
		return 0, err
	}
	if chunk <= 0 || chunk%pageSize != 0 || n <= 0 || n%chunk != 0 {
		return 0, fmt.Errorf("%w of %d bytes: addresses in chunks of %v, of whole pages of %v", alloc.ErrSize, n, chunk, pageSize)
	}
	first, ok := d.memory.pages.take(pagesOf(n))
	if !ok {
		return 0, fmt.Errorf("reserve %v of addresses on %v: %w", n, d, alloc.ErrOutOfMemory)
	}
	p := d.memory.base + alloc.Ptr(first)*alloc.Ptr(pageSize)
	d.memory.reserved[p] = &reservation{
		pages:  span{first, pagesOf(n)},
		chunk:  pagesOf(chunk),
		mapped: make(map[uint64]struct{}),
	}
	return p, nil
}

// Release takes back addresses that Reserve gave. It is an error if any of them is still mapped, or
// if Reserve did not give them.
func (d *device) Release(p alloc.Ptr) error {
	defer d.begin()()
	if err := d.enter("Reserve"); err != nil {
		return err
	}
	r := d.memory.reserved[p]
	switch {
	case r == nil:
		return fmt.Errorf("release addresses at %v on %v: %w", p, d, alloc.ErrUnknownPtr)
	case len(r.mapped) > 0:
		return fmt.Errorf("release addresses at %v on %v: %d chunks are mapped: unmap them first", p, d, len(r.mapped))
	}
	delete(d.memory.reserved, p)
	d.memory.pages.give(r.pages)
	return nil
}

// Map puts memory behind n bytes at p. The errors are *alloc.OutOfMemoryError, alloc.ErrUnknownPtr where
// these are not whole chunks of one reservation without memory,
// alloc.ErrClosed, and those of faults. There is no host memory behind it, also on a
// backed device.
func (d *device) Map(p alloc.Ptr, n alloc.Bytes) error {
	defer d.begin()()
	if err := d.enter("Map"); errors.Is(err, alloc.ErrOutOfMemory) {
		return d.outOfMemory(n, err)
	} else if err != nil {
		return err
	}
	r, first, chunks, err := d.chunks(p, n, false)
	if err != nil {
		return fmt.Errorf("map %v at %v on %v: %w", n, p, d, err)
	}
	if n > d.free() {
		return d.outOfMemory(n, nil)
	}
	for i := range chunks {
		r.mapped[first+i] = struct{}{}
	}
	d.memory.taken += pagesOf(n)
	return nil
}

// Unmap takes the memory behind n bytes at p, with Map's errors except
// *alloc.OutOfMemoryError.
func (d *device) Unmap(p alloc.Ptr, n alloc.Bytes) error {
	defer d.begin()()
	if err := d.enter("Unmap"); err != nil {
		return err
	}
	r, first, chunks, err := d.chunks(p, n, true)
	if err != nil {
		return fmt.Errorf("unmap %v at %v on %v: %w", n, p, d, err)
	}
	d.memory.write(d.streams.drain())
	for i := range chunks {
		delete(r.mapped, first+i)
	}
	d.memory.taken -= pagesOf(n)
	return nil
}

// chunks returns the chunks of a range. All of them must be mapped, or none, as mapped says.
func (d *device) chunks(p alloc.Ptr, n alloc.Bytes, mapped bool) (r *reservation, first, count uint64, err error) {
	for base, r := range d.memory.reserved {
		size := r.chunk * uint64(pageSize)
		offset := uint64(p - base)
		if p < base || offset >= r.pages.n*uint64(pageSize) {
			continue
		}
		if n <= 0 || offset%size != 0 || uint64(n)%size != 0 || uint64(n) > r.pages.n*uint64(pageSize)-offset {
			return nil, 0, 0, fmt.Errorf("these are not whole chunks of %v: %w", alloc.Bytes(size), alloc.ErrUnknownPtr)
		}
		first, count = offset/size, uint64(n)/size
		for i := range count {
			if _, is := r.mapped[first+i]; is != mapped {
				return nil, 0, 0, fmt.Errorf("chunk %d is mapped: %v: %w", first+i, is, alloc.ErrUnknownPtr)
			}
		}
		return r, first, count, nil
	}
	return nil, 0, 0, fmt.Errorf("the addresses are not reserved: %w", alloc.ErrUnknownPtr)
}
