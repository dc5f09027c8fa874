package cache

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

var (
	_ alloc.StreamAllocator = (*Cache)(nil)
)

// New returns an empty Cache over dev. Other code should not allocate through dev what it
// could allocate from the cache: the cache cannot give that memory back when memory runs out.
// The error is that of a setting of cfg that is not valid; ParseConfig returns only valid ones.
func New(dev alloc.Device, cfg Config) (*Cache, error) {
	device := text.Line(fmt.Sprintf("%s %d", dev.Name(), dev.Ordinal()))
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("new cache on %s: %w", device, err)
	}
	c := &Cache{
		dev:    dev,
		device: device,
		memory: alloc.MemoryOf(dev),
	}
	c.live = newTable(&c.blocks)
	c.initPools(&c.own, 0)
	c.pending.dev, _ = alloc.As[alloc.EventDevice](dev)
	if checker, ok := alloc.As[reuseChecker](dev); ok {
		c.checkReuse = checker.CheckReuse()
	}
	c.tuning = newTuning(c, cfg)
	return c, nil
}

// Alloc allocates n bytes for work on the default stream, from cached memory if possible. When
// the driver is out of memory, the cache gives free segments back and asks once more. If that
// fails too, the error is *OutOfMemoryError. Other errors are *SizeError for a negative n,
// ErrClosed, alloc.ErrBrokenDriver, and the driver's.
func (c *Cache) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p, _, err := c.AllocOn(n, 0)
	return p, err
}

// AllocOn is Alloc for work on a stream, and returns the size of the block too. Once the block is freed, it is reused for that
// stream only, until its segment goes back to the driver. The errors are those of Alloc.
func (c *Cache) AllocOn(n alloc.Bytes, s alloc.Stream) (p alloc.Ptr, allocated alloc.Bytes, err error) {
	if n < 0 {
		return 0, 0, &alloc.SizeError{Requested: n, Reason: "negative"}
	}
	c.lockSettled()
	b := c.fromCache(n, s, noOwner)
	if b == nil {
		c.mu.Unlock()
		return c.fromDriver(n, s, nil)
	}
	p, allocated = b.ptr, b.size
	c.mu.Unlock()
	return p, allocated, nil
}

// Free returns a block to the cache. It does not call the driver, except to record events if
// other streams use the block; see RecordStream. The block may be reused immediately for work
// on its own stream, which runs after the work that is queued. The errors are ErrDoubleFree
// for an address in cached memory, ErrUnknownPtr for
// any other address that is not an allocated block's, and ErrClosed.
func (c *Cache) Free(p alloc.Ptr) error {
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
func (c *Cache) MemInfo() (alloc.MemInfo, error) { return c.dev.MemInfo() }

// Name returns the device's name.
func (c *Cache) Name() string { return c.dev.Name() }

// Ordinal returns the device's index.
func (c *Cache) Ordinal() int { return c.dev.Ordinal() }

// Unwrap returns the device under the cache; As uses it.
func (c *Cache) Unwrap() alloc.Device { return c.dev }

// newTuning returns nil if all settings are the default.
func newTuning(c *Cache, cfg Config) *tuning {
	t := &tuning{
		cache:       c,
		roundup:     cfg.Roundup,
		maxSplit:    cmp.Or(cfg.MaxSplitSize, alloc.MaxBytes),
		maxRounding: cmp.Or(cfg.MaxNonSplitRounding, largeSegment),
		fraction:    cfg.MemoryFraction,
		threshold:   cfg.GarbageCollection,
	}
	if dev, ok := c.dev.(alloc.VirtualDevice); ok && cfg.ExpandableSegments {
		t.expandable = newExpandable(c, dev)
	}
	if t.expandable == nil && t.roundup == (RoundupDivisions{}) && t.maxSplit == alloc.MaxBytes && t.fraction == 0 {
		return nil
	}
	return t
}

// Memory returns alloc.VirtualMemory if the cache's segments are expandable, otherwise the kind of
// its device.
func (c *Cache) Memory() alloc.Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Locked().Memory()
}
