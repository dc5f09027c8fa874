package alloc

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

var (
	_ SizedAllocator  = (*Cache)(nil)
	_ StreamAllocator = (*Cache)(nil)
)

// NewCache returns an empty Cache over dev. Nothing else should allocate
// through dev what the cache could use: it would not be found when memory runs out.
// It panics if cfg has a setting that cannot be; ParseCacheConfig gives none.
func NewCache(dev Device, cfg CacheConfig) *Cache {
	if err := cfg.check(); err != nil {
		panic("alloc.NewCache: " + err.Error())
	}
	c := &Cache{
		dev:    dev,
		device: text.Line(fmt.Sprintf("%s %d", dev.Name(), dev.Ordinal())),
		memory: MemoryOf(dev),
		events: eventQueue{tell: cfg.OnSegment},
	}
	c.live = newTable(&c.blocks)
	c.initPools(&c.own, 0)
	c.pending.dev, _ = As[EventDevice](dev)
	if checker, ok := As[ReuseChecker](dev); ok {
		c.checkReuse = checker.CheckReuse()
	}
	c.tuning = newTuning(c, cfg)
	return c
}

// Alloc gives n bytes for work on the default stream, from the cache if it can. When
// the driver is out of memory, the cache gives back what it can spare, tries once
// more, and only then fails with *OutOfMemoryError. Other errors are *SizeError for
// a negative n, ErrClosed, ErrBrokenDriver, and what the driver says.
func (c *Cache) Alloc(n Bytes) (Ptr, error) {
	p, _, err := c.AllocOn(n, 0)
	return p, err
}

// AllocSized is Alloc, and returns the size of the block too. The errors are those of Alloc.
func (c *Cache) AllocSized(n Bytes) (p Ptr, allocated Bytes, err error) { return c.AllocOn(n, 0) }

// AllocOn is AllocSized for work on a stream. When the block is freed, only requests for the
// same stream can have it, until the driver has had its segment back. The errors are those of
// Alloc.
func (c *Cache) AllocOn(n Bytes, s Stream) (p Ptr, allocated Bytes, err error) {
	if n < 0 {
		return 0, 0, &SizeError{Requested: n, Reason: "negative"}
	}
	c.mu.Lock()
	if c.pending.count != 0 {
		c.mu.Unlock()
		c.Poll()
		c.mu.Lock()
	}
	b := c.fromCache(n, s, noOwner)
	if b == nil {
		c.mu.Unlock()
		return c.fromDriver(n, s, nil)
	}
	p, allocated = b.ptr, b.size
	c.mu.Unlock()
	return p, allocated, nil
}

// Free takes a block back into the cache. The driver is not asked, but for an event if other
// streams use the block; see RecordStream. Of its own stream the block may be handed out at
// once, for work that runs behind what is queued. The errors
// are ErrDoubleFree for an address in memory that is cached, ErrOwned for a
// block that a ledger holds, ErrUnknownPtr for any other that is not an
// allocated block's, and ErrClosed.
func (c *Cache) Free(p Ptr) error {
	c.mu.Lock()
	err := c.free(p, noOwner)
	fresh := len(c.pending.fresh) != 0
	c.mu.Unlock()
	if fresh {
		c.freshEvents()
	}
	return err
}

// MemInfo asks the driver. Free does not include what is cached. The error is the device's.
func (c *Cache) MemInfo() (MemInfo, error) { return c.dev.MemInfo() }

// Name returns the device's name.
func (c *Cache) Name() string { return c.dev.Name() }

// Ordinal returns the device's index.
func (c *Cache) Ordinal() int { return c.dev.Ordinal() }

// Unwrap returns the device under the cache; As uses it.
func (c *Cache) Unwrap() Device { return c.dev }

// newTuning returns nil if all settings are the default.
func newTuning(c *Cache, cfg CacheConfig) *tuning {
	t := &tuning{
		cache:       c,
		roundup:     cfg.Roundup,
		maxSplit:    cmp.Or(cfg.MaxSplitSize, MaxBytes),
		maxRounding: cmp.Or(cfg.MaxNonSplitRounding, largeSegment),
		fraction:    cfg.MemoryFraction,
		threshold:   cfg.GarbageCollection,
	}
	if dev, ok := c.dev.(VirtualDevice); ok && cfg.ExpandableSegments {
		t.expandable = newExpandable(c, dev)
	}
	if t.expandable == nil && t.roundup == (RoundupDivisions{}) && t.maxSplit == MaxBytes && t.fraction == 0 {
		return nil
	}
	return t
}
