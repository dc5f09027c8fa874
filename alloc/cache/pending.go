package cache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// pending is what a cache keeps of blocks that several streams use.
type pending struct {
	dev   capability.EventDevice // nil if the device has no events
	uses  map[id][]alloc.Stream  // for allocated blocks: the other streams that use them
	fresh []*freed               // blocks that lack some of their events
	count int                    // pending blocks

	reusable func(alloc.Ptr, alloc.Bytes, alloc.Stream) // called for each block that was pending; may be nil

	// polling is held while the device is asked about events, and is locked before mu. It guards
	// queues. The cache's lock guards the fields above.
	polling deviceLock
	queues  []*streamMarks
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
	event capability.Event
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

// recordStream is RecordStream for a caller that holds mu.
func (c *Cache) recordStream(p alloc.Ptr, s alloc.Stream) error {
	if c.closed {
		return c.closedError(fmt.Sprintf("record stream %#x for %v", uint64(s), p))
	}
	i := c.allocatedAt(p)
	if i == none {
		return fmt.Errorf("record stream %#x for %v on %s: %w", uint64(s), p, c.device, c.notLiveError(p))
	}
	return c.recordStreamOf(i, s)
}

// recordStreamOf is recordStream for an allocated block.
func (c *Cache) recordStreamOf(i id, s alloc.Stream) error {
	p := c.blocks.At(i).ptr
	if c.closed {
		return c.closedError(fmt.Sprintf("record stream %#x for %v", uint64(s), p))
	}
	if err := c.streams.check(s); err != nil {
		return fmt.Errorf("record a stream for %v on %s: %w", p, c.device, err)
	}
	uses := c.pending.uses[i]
	if s == c.streams.at(c.blocks.At(i).stream).stream || slices.Contains(uses, s) {
		return nil
	}
	if c.pending.dev == nil {
		return fmt.Errorf("record stream %#x for %v on %s: it has no events: wait for the stream before Free: %w", uint64(s), p, c.device, errors.ErrUnsupported)
	}
	if c.pending.uses == nil {
		c.pending.uses = make(map[id][]alloc.Stream)
	}
	c.pending.uses[i] = append(uses, s)
	return nil
}

// suspend makes a block that is being freed pending, if other streams use it, and reports whether
// it did. The caller holds mu, and calls recordFresh or poll once it has released it.
func (c *Cache) suspend(i id, b *block) bool {
	streams := c.pending.uses[i]
	if streams == nil {
		return false
	}
	delete(c.pending.uses, i)
	c.blocks.Touch(i)
	b.state, b.left = alloc.Pending, none
	change(&c.stats.Pending, b.size, 1)
	c.pending.count++
	c.pending.fresh = append(c.pending.fresh, &freed{block: i, streams: streams})
	return true
}

// resume makes a pending block inactive.
func (c *Cache) resume(i id) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks.At(i)
	change(&c.stats.Pending, -b.size, -1)
	c.pending.count--
	if c.pending.reusable != nil {
		c.pending.reusable(b.ptr, b.size, c.streams.at(b.stream).stream)
	}
	c.makeInactive(i, b)
}

// needsPoll reports whether events are to be recorded now. The caller holds mu.
func (c *Cache) needsPoll() bool { return len(c.pending.fresh) != 0 && !c.driver.held }

// pollUnlocked is poll for a caller that holds mu, which pollUnlocked releases meanwhile.
func (c *Cache) pollUnlocked() (polled bool) {
	if c.driver.held {
		return false
	}
	c.mu.Unlock()
	c.pollEventsOnce()
	c.mu.Lock()
	return true
}

// poll makes pending blocks inactive if their work is done. It does not wait. Blocks that become pending meanwhile
// are considered from the next poll on. It does nothing, and reports false, while the driver is asked for memory: it would
// wait for that call too.
func (c *Cache) poll() (polled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pollUnlocked()
}

// pollEventsOnce is poll for a caller to whom it does not matter whether driver is held.
func (c *Cache) pollEventsOnce() {
	if !c.pending.polling.tryLock() {
		return // another goroutine polls
	}
	defer c.pending.polling.unlock()
	_ = c.recordEvents() // what fails is tried again
	_ = c.pollEvents(capability.Event.Done)
}

// awaitPending waits until no block is pending. Those stay whose events the device refuses.
func (c *Cache) awaitPending() error {
	if err := c.pending.polling.lock(); err != nil {
		return fmt.Errorf("wait for pending blocks on %s: %w", c.device, err)
	}
	defer c.pending.polling.unlock()
	return errors.Join(c.recordEvents(), c.pollEvents(func(e capability.Event) (bool, error) {
		err := e.Wait()
		return err == nil, err
	}))
}

// recordFresh records the events of the blocks just freed, unless another goroutine polls: then the next poll
// records them.
func (c *Cache) recordFresh() {
	if c.pending.polling.tryLock() {
		defer c.pending.polling.unlock()
		_ = c.recordEvents()
	}
}

// recordEvents records the events that are missing. The caller holds polling.
func (c *Cache) recordEvents() error {
	c.mu.Lock()
	fresh := c.pending.fresh
	c.pending.fresh = nil
	c.mu.Unlock()
	var errs []error
	defer func() { // also if the device panics
		if fresh = slices.DeleteFunc(fresh, func(f *freed) bool { return len(f.streams) == 0 }); len(fresh) > 0 {
			c.mu.Lock()
			c.pending.fresh = append(fresh, c.pending.fresh...)
			c.mu.Unlock()
		}
	}()
	for _, f := range fresh {
		f.streams = slices.DeleteFunc(f.streams, func(s alloc.Stream) bool {
			event, err := c.pending.dev.RecordEvent(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("record an event on stream %#x of %s: %w", uint64(s), c.device, err))
				return false
			}
			f.events++
			c.pending.add(s, mark{event, f})
			return true
		})
	}
	return errors.Join(errs...)
}

// pollEvents asks each stream's events, the oldest first, until one has not passed. Then it makes
// the blocks inactive whose events have all passed. The caller holds polling.
func (c *Cache) pollEvents(passed func(capability.Event) (bool, error)) error {
	var errs []error
	for _, q := range c.pending.queues {
		for len(q.marks) > 0 {
			m := q.marks[0]
			done, err := passed(m.event)
			if err != nil {
				errs = append(errs, fmt.Errorf("event on stream %#x of %s: %w", uint64(q.stream), c.device, err))
			}
			if err != nil || !done {
				break
			}
			q.marks[0] = mark{}
			q.marks = q.marks[1:]
			if m.freed.events--; m.freed.events == 0 && len(m.freed.streams) == 0 {
				c.resume(m.freed.block)
			}
		}
	}
	c.pending.queues = slices.DeleteFunc(c.pending.queues, func(q *streamMarks) bool { return len(q.marks) == 0 })
	return errors.Join(errs...)
}
