package cache

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

var _ alloc.StreamAllocator = (*Cache)(nil)

// New returns an empty Cache over dev. Other code should not allocate through dev what it
// could allocate from the cache: the cache cannot give that memory back when memory runs out.
// The error is that of a setting of cfg that is not valid; ParseConfig returns only valid ones.
func New(dev alloc.Device, cfg Config) (*Cache, error) {
	c := &Cache{dev: dev, device: text.Line(fmt.Sprintf("%s %d", dev.Name(), dev.Ordinal()))}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("new cache on %s: %w", c.device, err)
	}
	c.rounding = rounding{cfg.Roundup, cfg.Roundup != ([16]int{})}
	c.live = newTable(&c.blocks)
	c.pending.dev, _ = alloc.As[ability.EventDevice](dev)
	if checker, ok := alloc.As[reuseChecker](dev); ok {
		c.checkReuse = checker.CheckReuse()
	}
	if virtual, ok := dev.(ability.VirtualDevice); ok && cfg.ExpandableSegments {
		c.useExpandable(virtual, cfg)
	} else {
		c.useSegments(cfg, ability.MemoryOf(dev))
	}
	if d, ok := alloc.As[ability.ThreadStreamer](dev); ok {
		c.streams.ofThread = d.StreamOfThread()
	}
	return c, nil
}

// reuseChecker is a Device that can check the memory that a cache hands out, as a simulated one
// can.
type reuseChecker interface {
	// CheckReuse returns a function that the cache calls for each block that it hands out, with
	// the stream that it is for. The cache holds its lock then: the function must not
	// call it. Nil means no check.
	CheckReuse() func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream)
}

// Alloc allocates n bytes for work on the default stream, from inactive memory if possible. When
// the driver is out of memory, the cache gives free segments back and asks once more. If that
// fails too, the error is *alloc.OutOfMemoryError. Other errors are alloc.ErrSize for a negative n,
// alloc.ErrClosed, alloc.ErrBrokenDriver, and the driver's.
func (c *Cache) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p, _, err := c.AllocOn(n, 0)
	return p, err
}

// AllocOn allocates as Alloc does, but for work on a stream, and returns the size of the block too.
// Once the block is freed, it is reused for that stream only, until its segment goes back to the
// driver. The errors are those of Alloc, and errors.ErrUnsupported for CU_STREAM_PER_THREAD, which
// is a different stream on each thread.
func (c *Cache) AllocOn(n alloc.Bytes, s alloc.Stream) (p alloc.Ptr, allocated alloc.Bytes, err error) {
	if n < 0 {
		return 0, 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	size := c.rounding.blockSize(n)
	c.mu.Lock()
	if c.pending.count != 0 {
		c.settle()
	}
	c.tick(size, 1)
	i, b := c.reuse(n, size, s)
	if b == nil {
		c.mu.Unlock()
		return c.fromDriver(request{n: n, size: size, stream: s})
	}
	p, allocated = b.ptr, b.size
	c.live.add(i, p)
	c.mu.Unlock()
	return p, allocated, nil
}

// Free returns a block to the cache. It does not call the driver, except to record events if
// other streams use the block; see RecordStream. The block may be reused immediately for work
// on its own stream, which runs after the work that is queued. The errors are alloc.ErrDoubleFree
// for an address in inactive memory, alloc.ErrUnknownPtr for
// any other address that is not an allocated block's, and alloc.ErrClosed.
func (c *Cache) Free(p alloc.Ptr) error {
	c.mu.Lock()
	err := c.free(p)
	unmarked := len(c.pending.fresh) != 0
	c.mu.Unlock()
	if unmarked {
		c.freshEvents()
	}
	return err
}

// Trim waits until no block is pending, gives every free segment back to the driver, and
// returns how much that was. Segments that the driver refuses stay in the cache, and its
// errors are joined. The error of a closed cache is alloc.ErrClosed.
func (c *Cache) Trim() (alloc.Bytes, error) {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return 0, c.refuse("empty")
	}
	return c.trim()
}

// Close waits until no block is pending, gives every free segment back to the driver, and
// closes the cache. After it Alloc, Free, RecordStream, Trim and Close return alloc.ErrClosed;
// Stats and Segments still show what is left. The device stays open.
//
// Close does not give back a segment with a block in use, because queued work may use it. The error
// then says how many blocks are in use, joined with the driver's errors.
func (c *Cache) Close() error {
	c.driver.Lock()
	defer c.driver.Unlock()
	if c.isClosed() {
		return c.refuse("close")
	}
	c.mu.Lock()
	c.closed = true
	used := c.stats.Allocated
	c.mu.Unlock()
	_, err := c.trim()
	if released := c.growth.close(); released != nil {
		err = errors.Join(err, released)
	}
	if used.Count.Current > 0 {
		err = errors.Join(fmt.Errorf("close cache on %s: blocks still in use: %d, of %v together: free them first", c.device, used.Count.Current, used.Bytes.Current), err)
	}
	return err
}

// Unwrap returns the device under the cache; alloc.As uses it.
func (c *Cache) Unwrap() alloc.Device { return c.dev }

// Memory returns alloc.VirtualMemory if the cache's segments are expandable, otherwise the type of
// its device's memory.
func (c *Cache) Memory() alloc.Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory
}
