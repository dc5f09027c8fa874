package cache

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// collectGarbage is PyTorch's garbage collection: when the cache holds more than the threshold, it
// gives back wholly free large segments until it does not, those first that have not been used for
// longer than the average. The caller holds the driver's lock.
func (t *tuning) collectGarbage() {
	c := t.cache
	if t.threshold == 0 || t.fraction == 0 || t.expandable != nil {
		return
	}
	limit := alloc.Bytes(t.threshold * float64(t.limit()))
	c.mu.Lock()
	excess := c.stats.Reserved.Bytes.Current - limit
	if excess <= 0 {
		c.mu.Unlock()
		return
	}
	old := t.oldest(excess)
	c.mu.Unlock()
	_, _ = c.give(c.detachFree(old)) // what the driver refuses stays
}

// oldest picks free blocks that are all of their large segment and have some bytes
// together, or all of those blocks.
func (t *tuning) oldest(enough alloc.Bytes) func(id) bool {
	var ids []id
	sum := 0.0
	for p := range t.cache.allPools() {
		for _, i := range p.large.from(0) {
			if t.cache.blocks.At(i).whole() {
				ids = append(ids, i)
				sum += t.age(i)
			}
		}
	}
	picked := make(map[id]bool)
	for taken := alloc.Bytes(0); taken < enough && len(ids) > 0; {
		average := sum / float64(len(ids))
		ids = slices.DeleteFunc(ids, func(i id) bool {
			if t.age(i) < average {
				return false
			}
			picked[i] = true
			taken += t.cache.blocks.At(i).size
			sum -= t.age(i)
			return true
		})
	}
	return func(i id) bool { return picked[i] }
}

// age returns for how many requests of large blocks a free block has not been used.
func (t *tuning) age(i id) float64 { return float64(t.lookups - t.cache.blocks.At(i).slack) }

// giveBackLarge gives back a stream's free blocks that are kept for large requests: the
// smallest that has the size, or if none has, the largest ones until they have it together.
// It reports whether that much was given back. The caller holds the driver's lock.
func (t *tuning) giveBackLarge(size alloc.Bytes, s alloc.Stream) bool {
	c, pool := t.cache, poolOf(size)
	if t.maxSplit == alloc.MaxBytes || t.expandable != nil {
		return false
	}
	size = max(size, t.maxSplit)
	c.mu.Lock()
	p := c.poolsOf(s)
	if p == nil {
		c.mu.Unlock()
		return false
	}
	tree := p.tree(pool)
	picked := make(map[id]bool)
	taken := alloc.Bytes(0)
	if i := tree.fit(size); i != none {
		picked[i], taken = true, size
	} else {
		for _, i := range slices.Backward(tree.from(t.maxSplit)) {
			if taken >= size {
				break
			}
			picked[i] = true
			taken += c.blocks.At(i).size
		}
	}
	c.mu.Unlock()
	leaving := c.detachFree(func(i id) bool { return picked[i] })
	slices.Reverse(leaving) // the largest first
	_, err := c.give(leaving)
	return err == nil && taken >= size
}
