package cache

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// whyNotFreed is the error of an address that cannot be freed.
func (c *Cache) whyNotFreed(p alloc.Ptr) error {
	if c.closed {
		return c.refuse(fmt.Sprintf("free %v", p))
	}
	return fmt.Errorf("free %v on %s: %w", p, c.device, c.whyNotLive(p))
}

// whyNotLive returns why an address is not a live block's.
func (c *Cache) whyNotLive(p alloc.Ptr) error {
	i := c.around(p)
	if i == none {
		return alloc.ErrUnknownPtr
	}
	switch b := c.blocks.At(i); {
	case b.state == alloc.Inactive, b.state == alloc.Pending:
		return alloc.ErrDoubleFree
	case b.state == alloc.Allocated && p == b.ptr && b.left != none:
		return cachelock.ErrOwned
	}
	return alloc.ErrUnknownPtr
}

// around returns the block that an address lies in, or none.
func (c *Cache) around(p alloc.Ptr) id {
	s, ok := c.segments.at(p)
	if !ok {
		return none
	}
	i := s.first
	for _, near := range c.waymarks.of {
		if b := c.blocks.At(near); c.blocks.At(i).ptr < b.ptr && b.ptr <= p {
			i = near
		}
	}
	for steps := 1; c.blocks.At(i).end() <= p; steps++ {
		if i = c.blocks.At(i).next; steps%stride == 0 {
			c.waymarks.add(i)
		}
	}
	return i
}

// stride is how many blocks are between two waymarks, and how many waymarks there are at most.
const stride = 1 << 10

// waymarks are blocks from which around goes on, in place of the first block of a segment, which may
// have a million. Nobody removes one when its block is gone: its record is then empty, or is that of
// another block. A record that begins in a segment is one of the segment's blocks.
type waymarks struct {
	of   []id
	next int // the one to replace
}

func (w *waymarks) add(i id) {
	if len(w.of) < stride {
		w.of = append(w.of, i)
		return
	}
	w.of[w.next] = i
	w.next = (w.next + 1) % stride
}

// allocatedAt returns the allocated block at an address, with or without an owner, or none.
func (c *Cache) allocatedAt(p alloc.Ptr) id {
	if i := c.live.find(p); i != none {
		return i
	}
	if i := c.around(p); i != none && c.blocks.At(i).ptr == p && c.blocks.At(i).state == alloc.Allocated {
		return i
	}
	return none
}
