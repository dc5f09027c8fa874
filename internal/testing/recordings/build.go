package recordings

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// build brings the cache into a state, by requests alone. Each segment is filled
// to its last byte before the next one is begun, so that there is one free block at
// most, and best fit has no choice.
func (r *replay) build(segments []Segment) error {
	var holes []alloc.Ptr
	for _, s := range segments {
		pieces, err := r.fill(s)
		if err != nil {
			return fmt.Errorf("segment %v of %v: %w", s.Ptr, s.Size, err)
		}
		holes = append(holes, pieces...)
	}
	for _, p := range holes {
		if err := r.cache.Free(p); err != nil {
			return err
		}
	}
	for _, s := range segments {
		for _, b := range s.Blocks {
			if !b.Pending {
				continue
			}
			if err := r.suspend(b.Ptr); err != nil {
				return err
			}
		}
	}
	return r.dev.failed
}

// fill allocates a segment's blocks, in order, and what lies between them, whose
// addresses it returns.
func (r *replay) fill(s Segment) (holes []alloc.Ptr, err error) {
	stream := alloc.Stream(s.Stream)
	r.dev.waiting = []call{{r.segmentAction, s.Ptr, s.Size}}
	if !s.Small { // one request of the whole size makes the driver give just that
		p, _, err := r.cache.AllocOn(s.Size, stream)
		if err != nil {
			return nil, err
		}
		if err := r.cache.Free(p); err != nil {
			return nil, err
		}
	}
	for _, b := range s.Blocks {
		for at := b.Ptr; at < b.end(); {
			size := alloc.Bytes(b.end() - at)
			if s.Small {
				size = min(size, splitLimit) // more would be asked of the large pool
			}
			p, allocated, err := r.cache.AllocOn(size, stream)
			if err != nil || p != at || allocated != size {
				return nil, fmt.Errorf("a piece of %v at %v is %v at %v: %w", size, at, allocated, p, err)
			}
			if !b.Allocated {
				holes = append(holes, p)
			}
			at += alloc.Ptr(size)
		}
	}
	for _, b := range s.Blocks { // again, with the size that was asked for
		if !b.Allocated || b.Requested == b.Size {
			continue
		}
		if err := r.cache.Free(b.Ptr); err != nil {
			return nil, err
		}
		p, allocated, err := r.cache.AllocOn(b.Requested, stream)
		if err != nil || p != b.Ptr || allocated != b.Size {
			return nil, fmt.Errorf("a request of %v for the block of %v at %v is %v at %v: %w", b.Requested, b.Size, b.Ptr, allocated, p, err)
		}
	}
	return holes, nil
}
