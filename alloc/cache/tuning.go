package cache

import (
	"errors"
	"math"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// without gives expandable segments up if the error is that the driver has none, and reports
// whether it did. The caller holds the driver's lock.
func (t *tuning) without(err error) bool {
	c := t.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, errors.ErrUnsupported) || len(c.segments) > 0 {
		return false
	}
	t.expandable = nil
	return true
}

// blockSize returns the size of the block that serves a request of n bytes.
func (t *tuning) blockSize(n alloc.Bytes) alloc.Bytes {
	if n < blockUnit || n >= 1<<47 { // no device has as much
		return blockSize(n)
	}
	step := bits.Len64(uint64(n)) - 1 // 2^step is the power of two below
	parts := t.roundup[min(max(step-20, 0), len(t.roundup)-1)]
	if parts <= 1 || n <= blockUnit*alloc.Bytes(parts) {
		return blockSize(n)
	}
	return roundUp(n, max(alloc.Bytes(1)<<step/alloc.Bytes(parts), 1))
}

// splits reports whether a block is split for a request that needs that size.
func (t *tuning) splits(b *block, size alloc.Bytes) bool {
	if t.expandable != nil {
		return b.size-size >= blockUnit
	}
	return poolSplits(b.pool, b.size-size) && (b.pool == alloc.SmallPool || size < t.maxSplit)
}

func (t *tuning) pool(p *pools, i id, b *block) {
	b.slack = t.lookups // the time from which it has not been used
	p.tree(b.pool).add(i)
	if t.expandable != nil {
		t.cache.stats.Releasable += t.expandable.chunks(b).size
	}
}

func (t *tuning) unpool(p *pools, i id, pool alloc.Pool) {
	p.tree(pool).remove(i)
	if t.expandable != nil {
		t.cache.stats.Releasable -= t.expandable.chunks(t.cache.blocks.At(i)).size
	}
}

// fit returns the block of a pool that fits best, or none.
func (t *tuning) fit(p *pools, pool alloc.Pool, size alloc.Bytes) id {
	if pool == alloc.LargePool {
		t.lookups++
	}
	tree := p.tree(pool)
	i := tree.fit(size)
	if i == none {
		return none
	}
	if t.expandable != nil {
		i = t.expandable.prefer(tree, i)
	}
	switch b := t.cache.blocks.At(i); {
	case size < t.maxSplit && b.size >= t.maxSplit:
		return none // it is kept for large requests
	case size >= t.maxSplit && b.size >= size+t.maxRounding:
		return none // it would leave too much unused
	}
	return i
}

// limit returns the most memory that the cache may hold.
func (t *tuning) limit() alloc.Bytes {
	if t.fraction == 0 {
		return alloc.MaxBytes
	}
	info, err := t.cache.dev.MemInfo()
	if err != nil || info.Total < 0 {
		return alloc.MaxBytes
	}
	if limit := t.fraction * float64(info.Total); limit < math.MaxInt64 {
		return alloc.Bytes(limit)
	}
	return alloc.MaxBytes
}
