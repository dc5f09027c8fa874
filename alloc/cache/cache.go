package cache

import (
	"errors"
	"fmt"
	"iter"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// dev is the device under a Cache.
type dev = alloc.Device

// Cache is a caching allocator over a Device, and is a Device itself. Its Name and Ordinal are those of the device
// below it, and so is MemInfo: inactive blocks count as used. The package comment describes its scheme. Make one with
// New.
type Cache struct {
	dev
	device   string // its name and ordinal, for errors
	rounding rounding

	// mu guards everything below, and is never held during a driver call: requests that find an
	// inactive block do not wait for those that need the driver. Requests that need the driver wait
	// for each other, so that the second can use what the first left free; see driverLock. While driver is
	// held, events are left alone too, because most drivers answer one call at a time.
	mu     spinlock.Mutex
	driver driverLock

	closed   bool
	blocks   slab.Slab[block]
	live     table // the allocated blocks without an owner
	streams  streams
	segments segmentList
	hints    hints
	pending  pending
	stats    alloc.Stats // except LargestInactive
	clock    uint32      // counts requests of large blocks: garbage collection's time

	// What the settings choose. growth and policy change only with both locks held.
	fitting fitting
	growth  growth
	policy  policy
	memory  alloc.Memory // the type of memory that the cache allocates

	checkReuse func(alloc.Ptr, alloc.Bytes, alloc.Stream) // the device's, or nil
	notify     func(cachelock.Event)                      // called with mu held; may be nil
}

// growth is how a cache gets its memory from the driver and gives it back.
type growth interface {
	// grow serves a request from new memory of the driver. Like trim and close, it is called with driver held, and
	// not mu.
	grow(r request) (alloc.Ptr, alloc.Bytes, error)
	// trim gives all free memory back.
	trim() (freed alloc.Bytes, err error)
	// close gives back what the driver allocated besides memory.
	close() error
}

// policy keeps a cache from holding more memory than it should. The caller holds driver, and not mu.
type policy interface {
	// limit returns the most memory that the cache may hold.
	limit() alloc.Bytes
	// collect gives memory back before the driver is asked for more.
	collect()
	// releaseFor gives memory back when the driver has no more, and reports whether to ask it again for a request.
	releaseFor(r request) bool
}

// request is what the driver is asked for, because nothing is cached that serves it.
type request struct {
	n        alloc.Bytes // that the caller wants
	size     alloc.Bytes // size of the block that serves it
	stream   alloc.Stream
	register cachelock.Register // enters the block in a ledger; nil for a block without an owner
	polled   bool               // events were asked, unless another goroutine did
}

func (r request) pool() pool { return poolOf(r.size) }

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
	c.live, c.driver.mu, c.driver.polling = newTable(&c.blocks), &c.mu, &c.pending.polling
	c.pending.dev, _ = alloc.As[capability.EventDevice](dev)
	if checker, ok := alloc.As[reuseChecker](dev); ok {
		c.checkReuse = checker.CheckReuse()
	}
	if virtual, ok := dev.(capability.VirtualDevice); ok && cfg.ExpandableSegments {
		useExpandable(c, virtual, cfg)
	} else {
		useSegments(c, cfg, capability.MemoryOf(dev))
	}
	if d, ok := alloc.As[capability.ThreadStreamer](dev); ok {
		c.streams.ofThread = d.StreamOfThread()
	}
	return c, nil
}

// reuseChecker is a Device that can check the blocks that a cache allocates, as a simulated one can.
type reuseChecker interface {
	// CheckReuse returns a function that the cache calls for each block that it allocates, with the stream that the
	// block is for. The cache holds its lock then: the function must not call it. Nil means no check.
	CheckReuse() func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream)
}

// Alloc allocates n bytes for work on the default stream, from inactive memory if possible. When
// the driver is out of memory, the cache gives free segments back and asks once more. If that
// fails too, the error is *alloc.OutOfMemoryError. Other errors are alloc.ErrSize for a negative n,
// alloc.ErrClosed, alloc.ErrBrokenDriver, alloc.ErrReentrant inside a method of the device, and the driver's.
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
	polled := c.pending.count == 0 || c.pollUnlocked()
	c.tick(size, 1)
	i, b := c.reuse(n, size, s)
	if b == nil {
		c.mu.Unlock()
		return c.allocSlow(request{n: n, size: size, stream: s, polled: polled})
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
	needsPoll := c.needsPoll()
	c.mu.Unlock()
	if needsPoll {
		c.recordFresh()
	}
	return err
}

// RecordStream says that work on a stream uses the allocated block at an address, in addition
// to work on the stream that it was allocated for. When the block is freed, it becomes
// Pending, and it is reused when the work that was queued on such streams by then is done.
// Call it before or after queueing the work, but before Free. The stream must live until the
// work is done.
//
// The errors are those of Free for an address, ErrClosed, and errors.ErrUnsupported on a device
// without events: there, wait for the work before Free. It is also the error for
// CU_STREAM_PER_THREAD, which is a different stream on each thread.
func (c *Cache) RecordStream(p alloc.Ptr, s alloc.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recordStream(p, s)
}

// Trim waits until no block is pending, gives every free segment back to the driver, and
// returns how much that was. Segments that the driver refuses stay in the cache, and its
// errors are joined. The error of a closed cache is alloc.ErrClosed; inside a method of the device it is
// alloc.ErrReentrant.
func (c *Cache) Trim() (alloc.Bytes, error) {
	if _, err := c.driver.lock(nil); err != nil {
		return 0, fmt.Errorf("trim on %s: %w", c.device, err)
	}
	defer c.driver.unlock()
	if c.isClosed() {
		return 0, c.closedError("trim")
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
	if _, err := c.driver.lock(nil); err != nil {
		return fmt.Errorf("close cache on %s: %w", c.device, err)
	}
	defer c.driver.unlock()
	if c.isClosed() {
		return c.closedError("close")
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

// Segments iterates over the segments in address order. It walks a copy of one instant, made
// when the iteration begins, some hundred blocks at a time: no Alloc waits for the whole copy.
// The loop's body may call the cache.
func (c *Cache) Segments() iter.Seq[alloc.Segment] {
	return func(yield func(alloc.Segment) bool) {
		for _, s := range c.copySegments() {
			if !yield(s) {
				return
			}
		}
	}
}

func (c *Cache) copySegments() []alloc.Segment {
	c.mu.Lock()
	cut := locked{c}.Cut()
	c.mu.Unlock()
	return cut.Segments()
}

// Stats returns the state at this instant.
func (c *Cache) Stats() alloc.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statsLocked()
}

// statsLocked is Stats for a caller that holds mu.
func (c *Cache) statsLocked() alloc.Stats {
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

// String names the device and says what the cache holds: "cache of Simulated GPU 0: 145.0 MiB of 200.0 MiB allocated".
func (c *Cache) String() string {
	if c.dev == nil {
		return "no cache: New makes one"
	}
	stats := c.Stats()
	return fmt.Sprintf("cache of %s: %v of %v allocated", c.device, stats.Allocated.Bytes.Current, stats.Reserved.Bytes.Current)
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

// Locked returns the cache's methods for a caller that holds its lock. Package tracker needs them: its ledger and the
// cache change in one step. No other module can name what Locked returns, so a program calls the methods of Cache.
func (c *Cache) Locked() cachelock.Cache { return locked{c} }

// closedError returns the error for a call on a closed cache.
func (c *Cache) closedError(what string) error {
	return fmt.Errorf("%s on %s: cache %w", what, c.device, alloc.ErrClosed)
}

func (c *Cache) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// emit reports an event to notify. The caller holds mu.
func (c *Cache) emit(action cachelock.Action, p alloc.Ptr, size alloc.Bytes, s alloc.Stream) {
	if c.notify != nil {
		c.notify(cachelock.Event{Action: action, Ptr: p, Size: size, Stream: s})
	}
}
