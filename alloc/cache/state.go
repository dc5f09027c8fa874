package cache

import (
	"fmt"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
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

	// driver is held while segments are taken from or given to the driver; it is taken before mu.
	// mu guards everything below, and is never held during a driver call: requests that find an
	// inactive block do not wait for those that need the driver. Requests that need the driver wait
	// for each other, so that the second can use what the first brought.
	driver sync.Mutex
	mu     spinlock.Mutex

	closed   bool
	blocks   slab.Slab[block]
	live     table // the allocated blocks
	streams  streams
	segments segmentList
	waymarks waymarks
	pending  pending
	stats    alloc.Stats // except LargestInactive
	clock    uint32      // counts requests of large blocks: garbage collection's time

	// What the settings choose. growth and tuning change only with both locks held.
	fitting fitting
	growth  growth
	tuning  tuning
	memory  alloc.Memory // that the cache gives

	checkReuse func(alloc.Ptr, alloc.Bytes, alloc.Stream) // the device's, or nil
	notify     func(cachelock.Event)                      // called with mu held; may be nil
}

// growth is how a cache gets its memory from the driver and gives it back.
type growth interface {
	// grow serves a request from memory that the driver is asked for, trim gives back all that is free, and
	// close what the driver gave besides memory. The caller holds driver, and not mu.
	grow(r request) (alloc.Ptr, alloc.Bytes, error)
	trim() (given alloc.Bytes, err error)
	close() error
}

// tuning keeps a cache from holding more memory than it should. The caller holds driver, and not mu.
type tuning interface {
	// limit returns the most memory that the cache may hold.
	limit() alloc.Bytes
	// collect gives memory back before the driver is asked for more.
	collect()
	// spare gives memory back when the driver has no more, and reports whether to ask it again for a request.
	spare(r request) bool
}

// request is what the driver is asked for, because nothing is cached that serves it.
type request struct {
	n      alloc.Bytes // that the caller wants
	size   alloc.Bytes // size of the block that serves it
	stream alloc.Stream
	enter  cachelock.Enter // tells a ledger of the block; may be nil
}

func (r request) pool() pool { return poolOf(r.size) }

// pending is what a cache keeps of blocks that several streams use.
type pending struct {
	dev   ability.EventDevice   // nil if the device has no events
	uses  map[id][]alloc.Stream // for allocated blocks: the other streams that use them
	fresh []*freed              // blocks without all of their events
	count int                   // pending blocks

	reusable func(alloc.Ptr, alloc.Bytes, alloc.Stream) // told of blocks that were pending; nil is nobody

	// asking is held while the device is asked about events, and is taken before mu. It guards
	// queues. The cache's lock guards the fields above.
	asking sync.Mutex
	queues []*streamMarks
}

// freed is a pending block.
type freed struct {
	block   id
	streams []alloc.Stream // those without an event yet
	events  int            // events that have not passed yet
}

// streamMarks holds the events on one stream, the oldest first: they pass in this order.
type streamMarks struct {
	stream alloc.Stream
	marks  []mark
}

type mark struct {
	event ability.Event
	freed *freed
}

// add enters an event behind those on its stream.
func (p *pending) add(s alloc.Stream, m mark) {
	for _, q := range p.queues {
		if q.stream == s {
			q.marks = append(q.marks, m)
			return
		}
	}
	p.queues = append(p.queues, &streamMarks{s, []mark{m}})
}

// refuse returns the error for a call on a closed cache.
func (c *Cache) refuse(what string) error {
	return fmt.Errorf("%s on %s: cache %w", what, c.device, alloc.ErrClosed)
}

func (c *Cache) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// happened tells of an event. The caller holds mu.
func (c *Cache) happened(action cachelock.Action, p alloc.Ptr, size alloc.Bytes, s alloc.Stream) {
	if c.notify != nil {
		c.notify(cachelock.Event{Action: action, Ptr: p, Size: size, Stream: s})
	}
}
