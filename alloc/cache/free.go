package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// free is Free for who holds mu, and for a block of that owner.
func (c *Cache) free(p alloc.Ptr, owner cachelock.Owner) error {
	i := none
	if !c.closed {
		i = c.live.remove(p, owner)
	}
	if i == none {
		return c.whyNotFreed(p)
	}
	b := c.blocks.At(i)
	usageAdd(&c.stats.Requested, -b.requested(), -1)
	usageAdd(&c.stats.Allocated, -b.size, -1)
	if len(c.pending.uses) != 0 && c.suspend(i, b) {
		return nil
	}
	c.retire(i, b)
	return nil
}
