package alloc

import (
	"fmt"
	"sync"
)

// Cache is a caching allocator over a Device, and is a Device itself. The
// package comment describes its scheme. Make one with NewCache.
type Cache struct {
	dev       Device
	onSegment func(SegmentEvent)

	// driver is held while the driver is asked for segments or given them
	// back, and is taken before mu. mu guards everything below, and is never
	// held during a driver call: those who find what they need in the cache
	// do not wait for those who do not. Misses wait for each other, so that the
	// second can use what the first brought.
	driver sync.Mutex
	mu     sync.Mutex

	closed   bool
	blocks   slab
	live     table // the allocated blocks
	small    bins  // the inactive blocks of each pool
	large    tree
	segments []segment // by address
	stats    Stats     // but for LargestInactive
}

// CacheConfig is how a Cache works. The zero CacheConfig is a good one.
type CacheConfig struct {
	// OnSegment, if not nil, is told of each SegmentEvent, one at a time, in
	// the order in which they happen. Cached hits go on meanwhile; other
	// requests that need the driver wait. It may call the Cache's Stats,
	// Segments and MemInfo, but not Alloc, Empty or Close, which would wait for
	// it forever.
	OnSegment func(SegmentEvent)
}

var (
	_ Device         = (*Cache)(nil)
	_ SizedAllocator = (*Cache)(nil)
)

// NewCache returns an empty Cache over dev. Nothing else should allocate
// through dev what the cache could use: it would not be found when memory runs out.
func NewCache(dev Device, cfg CacheConfig) *Cache {
	c := &Cache{dev: dev, onSegment: cfg.OnSegment}
	c.live = newTable(&c.blocks)
	c.small.blocks = &c.blocks
	c.large.blocks = &c.blocks
	return c
}

// Alloc gives n bytes, from the cache if it can. When the driver is out of
// memory, the cache gives back what it can spare, tries once more, and only
// then fails with *OutOfMemoryError. Other errors are *SizeError for a negative
// n, ErrClosed, ErrBrokenDriver, and what the driver says.
func (c *Cache) Alloc(n Bytes) (Ptr, error) {
	p, _, err := c.AllocSized(n)
	return p, err
}

// AllocSized is Alloc, and returns the size of the block too.
func (c *Cache) AllocSized(n Bytes) (p Ptr, allocated Bytes, err error) {
	if n < 0 {
		return 0, 0, &SizeError{Requested: n, Reason: "negative"}
	}
	c.mu.Lock()
	p, allocated, ok := c.fromCache(n)
	c.mu.Unlock()
	if !ok {
		return c.fromDriver(n)
	}
	return p, allocated, nil
}

// Free takes a block back into the cache; the driver is not asked. The errors
// are ErrDoubleFree for an address in memory that is cached, ErrUnknownPtr for
// any other that is not an allocated block's, and ErrClosed.
func (c *Cache) Free(p Ptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.refuse(fmt.Sprintf("free %v", p))
	}
	i := c.live.remove(p)
	if i == none {
		return fmt.Errorf("free %v on %s: %w", p, c.device(), c.whyNotLive(p))
	}
	b := c.blocks.at(i)
	c.stats.Requested.add(-b.requested(), -1)
	c.stats.Allocated.add(-b.size, -1)
	size := b.size
	b.state = Inactive
	c.stats.Inactive.add(size, 1-c.join(i))
	return nil
}

// fromCache allocates from the inactive blocks. The caller holds mu.
func (c *Cache) fromCache(n Bytes) (Ptr, Bytes, bool) {
	if c.closed || n > maxRequest {
		return 0, 0, false
	}
	size := blockSize(n)
	var i id
	if size <= smallLimit {
		if i = c.small.fit(size); i == none {
			return 0, 0, false
		}
		c.small.remove(i)
	} else {
		if i = c.large.fit(size); i == none {
			return 0, 0, false
		}
		c.large.remove(i)
	}
	remainders := c.take(i, n)
	b := c.blocks.at(i)
	c.stats.Inactive.add(-b.size, remainders-1)
	return b.ptr, b.size, true
}

// take allocates the front of an inactive block, which is in no pool. It puts
// the remainder, if there is one, into its pool, and returns the number of
// them. The caller accounts for what becomes or ceases to be inactive.
func (c *Cache) take(i id, n Bytes) (remainders int64) {
	b, size := c.blocks.at(i), blockSize(n)
	if b.pool.splits(b.size - size) {
		j := c.blocks.get()
		rest := c.blocks.at(j)
		*rest = block{ptr: b.ptr + Ptr(size), size: b.size - size, prev: i, next: b.next, pool: b.pool, state: Inactive}
		if rest.next != none {
			c.blocks.at(rest.next).prev = j
		}
		b.next, b.size = j, size
		c.pool(rest).add(j)
		remainders = 1
	}
	b.state = Allocated
	b.slack = uint32(b.size - n)
	c.live.add(i)
	c.stats.Requested.add(n, 1)
	c.stats.Allocated.add(b.size, 1)
	return remainders
}

// join puts an inactive block into its pool, as one with its inactive
// neighbours, and returns the number of those.
func (c *Cache) join(i id) (neighbours int64) {
	b := c.blocks.at(i)
	if j := b.prev; j != none && c.blocks.at(j).state == Inactive {
		c.pool(b).remove(j)
		c.absorb(j, i)
		i, b = j, c.blocks.at(j)
		neighbours++
	}
	if j := b.next; j != none && c.blocks.at(j).state == Inactive {
		c.pool(b).remove(j)
		c.absorb(i, j)
		neighbours++
	}
	c.pool(b).add(i)
	return neighbours
}

// absorb makes block j, which follows block i, a part of it.
func (c *Cache) absorb(i, j id) {
	b, gone := c.blocks.at(i), c.blocks.at(j)
	b.size += gone.size
	b.next = gone.next
	if b.next != none {
		c.blocks.at(b.next).prev = i
	}
	c.blocks.put(j)
}

// pool returns the pool of a block.
func (c *Cache) pool(b *block) interface {
	add(id)
	remove(id)
} {
	if b.pool == SmallPool {
		return &c.small
	}
	return &c.large
}

// whyNotLive returns why an address cannot be freed.
func (c *Cache) whyNotLive(p Ptr) error {
	s, ok := c.segmentAt(p)
	for i := s.first; ok && i != none; i = c.blocks.at(i).next {
		if b := c.blocks.at(i); p < b.end() {
			if b.state == Inactive {
				return ErrDoubleFree
			}
			break
		}
	}
	return ErrUnknownPtr
}

// refuse is the error of what is asked of a closed cache.
func (c *Cache) refuse(what string) error {
	return fmt.Errorf("%s on %s: cache %w", what, c.device(), ErrClosed)
}

func (c *Cache) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// MemInfo asks the driver. Free does not include what is cached.
func (c *Cache) MemInfo() (MemInfo, error) { return c.dev.MemInfo() }

// Name returns the device's name.
func (c *Cache) Name() string { return c.dev.Name() }

// Ordinal returns the device's index.
func (c *Cache) Ordinal() int { return c.dev.Ordinal() }

// Unwrap returns the device under the cache; As uses it.
func (c *Cache) Unwrap() Device { return c.dev }

// device returns the device's name and ordinal, for errors.
func (c *Cache) device() string { return fmt.Sprintf("%s %d", c.dev.Name(), c.dev.Ordinal()) }
