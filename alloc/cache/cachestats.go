package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Stats returns the state at this instant.
func (c *Cache) Stats() alloc.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is Stats for who holds mu.
func (c *Cache) now() alloc.Stats {
	stats := c.stats
	stats.LargestInactive = c.own.largest()
	for _, p := range c.others.pools {
		stats.LargestInactive = max(stats.LargestInactive, p.largest())
	}
	return stats
}

// ResetPeak lowers each peak to the current level.
func (c *Cache) ResetPeak() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, usage := range []*alloc.Usage{&c.stats.Requested, &c.stats.Allocated, &c.stats.Inactive, &c.stats.Pending, &c.stats.Reserved} {
		usageResetPeak(usage)
	}
}
