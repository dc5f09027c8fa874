package cache

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// String names the device and says what the cache holds: "cache of Simulated GPU 0: 145.0 MiB of 200.0 MiB allocated".
func (c *Cache) String() string {
	if c.dev == nil {
		return "no cache: New makes one"
	}
	stats := c.Stats()
	return fmt.Sprintf("cache of %s: %v of %v allocated", c.device, stats.Allocated.Bytes.Current, stats.Reserved.Bytes.Current)
}

// Stats returns the state at this instant.
func (c *Cache) Stats() alloc.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is Stats for who holds mu.
func (c *Cache) now() alloc.Stats {
	stats := c.stats
	stats.LargestInactive = c.streams.largest()
	return stats
}

// ResetPeak lowers each peak to the current level.
func (c *Cache) ResetPeak() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range []*alloc.Usage{&c.stats.Requested, &c.stats.Allocated, &c.stats.Inactive, &c.stats.Pending, &c.stats.Reserved} {
		u.Bytes.Peak, u.Count.Peak = u.Bytes.Current, u.Count.Current
	}
}

// change adds to a usage.
func change(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	changeGauge(&u.Bytes, bytes)
	changeGauge(&u.Count, count)
}

func changeGauge[T ~int64](g *alloc.Gauge[T], by T) {
	g.Current += by
	if by > 0 {
		if g.Total += by; g.Total < 0 {
			g.Total = math.MaxInt64
		}
		g.Peak = max(g.Peak, g.Current)
	}
}

// restore adds back what was taken off, without counting it in Total.
func restore(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	u.Bytes.Current += bytes
	u.Bytes.Peak = max(u.Bytes.Peak, u.Bytes.Current)
	u.Count.Current += count
	u.Count.Peak = max(u.Count.Peak, u.Count.Current)
}
