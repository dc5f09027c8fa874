package alloc

import (
	"fmt"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// Cache is a caching allocator over a Device, and is a Device itself. The
// package comment describes its scheme. Make one with NewCache.
type Cache struct {
	dev    Device
	device string // its name and ordinal, for errors

	// driver is held while the driver is asked for segments or given them
	// back, and is taken before mu. mu guards everything below, and is never
	// held during a driver call: those who find what they need in the cache
	// do not wait for those who do not. Misses wait for each other, so that the
	// second can use what the first brought.
	driver sync.Mutex
	mu     spinlock.Mutex

	closed   bool
	blocks   slab.Slab[block]
	live     table // the allocated blocks
	small    bins  // the inactive blocks of each pool
	large    tree
	segments []segment // by address
	stats    Stats     // but for LargestInactive
	events   eventQueue
}

// CacheConfig is how a Cache works. The zero CacheConfig is a good one.
type CacheConfig struct {
	// OnSegment, if not nil, is told of each SegmentEvent, one at a time, in
	// the order in which they happened. No lock is held: it may call the Cache,
	// and a block of a new segment may be in use before OnSegment hears of it.
	OnSegment func(SegmentEvent)
}

var (
	_ Device         = (*Cache)(nil)
	_ SizedAllocator = (*Cache)(nil)
)

// NewCache returns an empty Cache over dev. Nothing else should allocate
// through dev what the cache could use: it would not be found when memory runs out.
func NewCache(dev Device, cfg CacheConfig) *Cache {
	c := &Cache{
		dev:    dev,
		device: fmt.Sprintf("%s %d", dev.Name(), dev.Ordinal()),
		events: eventQueue{tell: cfg.OnSegment},
	}
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
	b := c.fromCache(n, noOwner)
	if b == nil {
		c.mu.Unlock()
		return c.fromDriver(n, nil)
	}
	p, allocated = b.ptr, b.size
	c.mu.Unlock()
	return p, allocated, nil
}

// Free takes a block back into the cache; the driver is not asked. The errors
// are ErrDoubleFree for an address in memory that is cached, ErrOwned for a
// block that a ledger holds, ErrUnknownPtr for any other that is not an
// allocated block's, and ErrClosed.
func (c *Cache) Free(p Ptr) error {
	c.mu.Lock()
	err := c.free(p, noOwner)
	c.mu.Unlock()
	return err
}

// free is Free for who holds mu, and for a block of that owner.
func (c *Cache) free(p Ptr, owner Owner) error {
	i := none
	if !c.closed {
		i = c.live.remove(p, owner)
	}
	if i == none {
		return c.whyNotFreed(p)
	}
	b := c.blocks.At(i)
	c.stats.Requested.add(-b.requested(), -1)
	c.stats.Allocated.add(-b.size, -1)
	c.blocks.Touch(i)
	size := b.size
	b.state = Inactive
	c.stats.Inactive.add(size, 1-c.join(i, b))
	return nil
}

// fromCache allocates from the inactive blocks; nil if none fits. The caller
// holds mu.
func (c *Cache) fromCache(n Bytes, owner Owner) *block {
	if c.closed || n > maxRequest {
		return nil
	}
	size := blockSize(n)
	pool := poolOf(size)
	i := c.fit(pool, size)
	if i == none {
		return nil
	}
	c.unpool(i, pool)
	b, remainders := c.take(i, n, owner)
	c.stats.Inactive.add(-b.size, remainders-1)
	return b
}

// take allocates the front of an inactive block, which is in no pool. It puts
// the remainder, if there is one, into its pool, and returns the number of
// them. The caller accounts for what becomes or ceases to be inactive.
func (c *Cache) take(i id, n Bytes, owner Owner) (b *block, remainders int64) {
	b = c.blocks.At(i)
	c.blocks.Touch(i)
	if b.whole() {
		c.stats.Releasable -= b.size
	}
	if size := blockSize(n); b.pool.splits(b.size - size) {
		c.split(i, b, size)
		remainders = 1
	}
	b.state = Allocated
	b.left = id(owner)
	b.slack = uint32(b.size - n)
	c.live.add(i, b.ptr)
	c.stats.Requested.add(n, 1)
	c.stats.Allocated.add(b.size, 1)
	return b, remainders
}

// split cuts a block down to size, and puts what remains into its pool.
func (c *Cache) split(i id, b *block, size Bytes) {
	j, rest := c.blocks.Get()
	// Field by field: the processor waits for a block that is built elsewhere and copied.
	rest.ptr, rest.size = b.ptr+Ptr(size), b.size-size
	rest.prev, rest.next = i, b.next
	rest.pool, rest.state = b.pool, Inactive
	if b.next != none {
		c.blocks.At(b.next).prev = j
	}
	b.next, b.size = j, size
	c.pool(j, rest)
}

// join puts an inactive block into its pool, as one with its inactive
// neighbours, and returns the number of those.
func (c *Cache) join(i id, b *block) (neighbours int64) {
	if j := b.prev; j != none {
		if before := c.blocks.At(j); before.state == Inactive {
			c.unpool(j, b.pool)
			c.blocks.Touch(j)
			c.absorb(j, before, i, b)
			i, b = j, before
			neighbours++
		}
	}
	if j := b.next; j != none {
		if after := c.blocks.At(j); after.state == Inactive {
			c.unpool(j, b.pool)
			c.absorb(i, b, j, after)
			neighbours++
		}
	}
	c.pool(i, b)
	if b.whole() {
		c.stats.Releasable += b.size
	}
	return neighbours
}

// absorb makes block j, gone, which follows block i, a part of it. The caller has
// announced the change of i.
func (c *Cache) absorb(i id, b *block, j id, gone *block) {
	b.size += gone.size
	b.next = gone.next
	if b.next != none {
		c.blocks.At(b.next).prev = i
	}
	c.blocks.Put(j)
}

// pool puts an inactive block into its pool.
func (c *Cache) pool(i id, b *block) {
	if b.pool == SmallPool {
		c.small.add(i)
	} else {
		c.large.add(i)
	}
}

// unpool takes a block out of its pool.
func (c *Cache) unpool(i id, pool Pool) {
	if pool == SmallPool {
		c.small.remove(i)
	} else {
		c.large.remove(i)
	}
}

// fit returns the block of a pool that fits best, or none.
func (c *Cache) fit(pool Pool, size Bytes) id {
	if pool == SmallPool {
		return c.small.fit(size)
	}
	return c.large.fit(size)
}

// whyNotFreed is the error of an address that cannot be freed.
func (c *Cache) whyNotFreed(p Ptr) error {
	if c.closed {
		return c.refuse(fmt.Sprintf("free %v", p))
	}
	return fmt.Errorf("free %v on %s: %w", p, c.device, c.whyNotLive(p))
}

// whyNotLive returns why an address is not a live block's.
func (c *Cache) whyNotLive(p Ptr) error {
	s, ok := c.segmentAt(p)
	for i := s.first; ok && i != none; i = c.blocks.At(i).next {
		if b := c.blocks.At(i); p < b.end() {
			switch {
			case b.state == Inactive:
				return ErrDoubleFree
			case p == b.ptr && b.left != none:
				return ErrOwned
			}
			break
		}
	}
	return ErrUnknownPtr
}

// refuse is the error of what is asked of a closed cache.
func (c *Cache) refuse(what string) error {
	return fmt.Errorf("%s on %s: cache %w", what, c.device, ErrClosed)
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
