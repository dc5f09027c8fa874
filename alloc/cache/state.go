package cache

import (
	"fmt"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// Cache is a caching allocator over a Device, and is a Device itself. The
// package comment describes its scheme. Make one with New.
type Cache struct {
	dev    alloc.Device
	device string       // its name and ordinal, for errors
	memory alloc.Memory // that it gives

	// driver is held while the driver is asked for segments or given them
	// back, and is taken before mu. mu guards everything below, and is never
	// held during a driver call: those who find what they need in the cache
	// do not wait for those who do not. Misses wait for each other, so that the
	// second can use what the first brought.
	driver sync.Mutex
	mu     spinlock.Mutex

	closed     bool
	blocks     slab.Slab[block]
	live       table // the allocated blocks
	own        pools // of the default stream
	others     streams
	segments   []segment // by address
	pending    pending
	tuning     *tuning                                    // nil if all settings are the default
	stats      alloc.Stats                                // except LargestInactive
	checkReuse func(alloc.Ptr, alloc.Bytes, alloc.Stream) // the device's, or nil
	notify     func(cachelock.Event)                      // called with mu held; nil is nobody
}

// refuse is the error of what is asked of a closed cache.
func (c *Cache) refuse(what string) error {
	return fmt.Errorf("%s on %s: cache %w", what, c.device, alloc.ErrClosed)
}

func (c *Cache) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// tuning is what the settings of a cache change.
type tuning struct {
	cache       *Cache
	roundup     RoundupDivisions
	maxSplit    alloc.Bytes // MaxBytes if there is no limit
	maxRounding alloc.Bytes
	fraction    float64 // of the device's memory
	threshold   float64 // of that
	lookups     uint32  // of large blocks: the clock of garbage collection
	expandable  *expandable
}

// expandable gives a cache expandable segments: ranges of addresses, larger than the
// device's memory, of which the parts in use are mapped to memory. In the cache's
// list each is one segment, whose blocks tile all of it; those without memory are
// unmapped, and are in no pool but in its stream's holes. For everybody else each stretch of mapped blocks
// is a segment.
type expandable struct {
	cache *Cache
	dev   alloc.VirtualDevice
}

// happened tells of an event. The caller holds mu.
func (c *Cache) happened(action cachelock.Action, p alloc.Ptr, size alloc.Bytes, s alloc.Stream) {
	if c.notify != nil {
		c.notify(cachelock.Event{Action: action, Ptr: p, Size: size, Stream: s})
	}
}
