package cache

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// handOut gives a block, just taken, to who asked for it: a ledger, if enter
// is not nil. The caller holds mu.
func (c *Cache) handOut(b *block, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	p, size := b.ptr, b.size
	if enter == nil {
		return p, size, nil
	}
	owner, err := enter(p, size)
	if err != nil {
		return 0, 0, errors.Join(err, c.free(p, noOwner))
	}
	b.left = id(owner)
	return p, size, nil
}

// fromCache allocates from the inactive blocks; nil if none fits. The caller
// holds mu.
func (c *Cache) fromCache(n alloc.Bytes, s alloc.Stream, owner cachelock.Owner) *block {
	if c.closed || n > maxRequest {
		return nil
	}
	p := c.poolsOf(s)
	if p == nil {
		c.addLookup(n, 1)
		return nil
	}
	size := c.blockSize(n)
	pool := poolOf(size)
	i := c.fit(p, pool, size)
	if i == none {
		return nil
	}
	c.unpool(p, i, pool)
	b, remainders := c.take(i, n, size, owner)
	usageAdd(&c.stats.Inactive, -b.size, remainders-1)
	return b
}

// recheck is fromCache for a request for which there was nothing in the cache a moment ago.
func (c *Cache) recheck(n alloc.Bytes, on alloc.Stream) *block {
	c.addLookup(n, -1) // it has been counted
	return c.fromCache(n, on, noOwner)
}

// addLookup changes the count of lookups if it counts those of n bytes.
func (c *Cache) addLookup(n alloc.Bytes, change int32) {
	if c.tuning != nil && n <= maxRequest && poolOf(c.blockSize(n)) == alloc.LargePool {
		c.tuning.lookups += uint32(change)
	}
}
