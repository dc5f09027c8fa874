package cache

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// retire makes a block inactive that was not.
func (c *Cache) retire(i id, b *block) {
	c.blocks.Touch(i)
	size := b.size
	b.state = alloc.Inactive
	usageAdd(&c.stats.Inactive, size, 1-c.join(i, b))
}

// whyNotFreed is the error of an address that cannot be freed.
func (c *Cache) whyNotFreed(p alloc.Ptr) error {
	if c.closed {
		return c.refuse(fmt.Sprintf("free %v", p))
	}
	return fmt.Errorf("free %v on %s: %w", p, c.device, c.whyNotLive(p))
}

// whyNotLive returns why an address is not a live block's.
func (c *Cache) whyNotLive(p alloc.Ptr) error {
	s, ok := c.segmentAt(p)
	for i := s.first; ok && i != none; i = c.blocks.At(i).next {
		if b := c.blocks.At(i); p < b.end() {
			switch {
			case b.state == alloc.Inactive, b.state == alloc.Pending:
				return alloc.ErrDoubleFree
			case b.state == alloc.Allocated && p == b.ptr && b.left != none:
				return cachelock.ErrOwned
			}
			break
		}
	}
	return alloc.ErrUnknownPtr
}
