package cache

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Locked is a Cache for a caller that holds its lock. A ledger of the cache's blocks uses it
// to change in one step with the cache, so that no goroutine sees one without the other.
// Package tracker does.
//
//	lock := cache.Locker()
//	lock.Lock()
//	p, allocated, ok := cache.Locked().Alloc(n, owner)
//	... // enter p in the ledger
//	lock.Unlock()
//
// All other methods of the Cache would wait for the lock forever.
type Locked struct {
	c *Cache
}

// Locker returns the cache's lock. Hold it for a microsecond at most, because every Alloc and
// Free waits for it.
func (c *Cache) Locker() sync.Locker { return &c.mu }

// Locked returns the cache for a caller that holds its lock.
func (c *Cache) Locked() Locked { return Locked{c} }

// Alloc allocates n bytes from cached memory. ok is false if n is negative or the driver must
// be asked: see AllocOwned.
func (l Locked) Alloc(n alloc.Bytes, owner Owner) (p alloc.Ptr, allocated alloc.Bytes, ok bool) {
	return l.AllocOn(n, 0, owner)
}

// AllocOn is Alloc for work on a stream, as Cache.AllocOn; if ok is false, see AllocOwnedOn.
// If there are pending blocks, call Cache.Poll first, without the lock.
func (l Locked) AllocOn(n alloc.Bytes, s alloc.Stream, owner Owner) (p alloc.Ptr, allocated alloc.Bytes, ok bool) {
	if n < 0 {
		return 0, 0, false
	}
	b := l.c.fromCache(n, s, owner)
	if b == nil {
		l.c.addLookup(n, -1) // AllocOwnedOn counts it
		return 0, 0, false
	}
	return b.ptr, b.size, true
}

// RecordStream is Cache.RecordStream. The errors are the same.
func (l Locked) RecordStream(p alloc.Ptr, s alloc.Stream) error { return l.c.recordStream(p, s) }

// Pending reports whether there are pending blocks.
func (l Locked) Pending() bool { return l.c.pending.count != 0 }

// Unmarked reports whether blocks wait for Cache.Poll to record their events; see Free.
func (l Locked) Unmarked() bool { return len(l.c.pending.fresh) != 0 }

// Free is Cache.Free for a block of that owner. Any other address is ErrUnknownPtr or
// ErrDoubleFree. If other streams use the block, call Cache.Poll soon, without the lock: it
// records the events, or else the next AllocOwned does.
func (l Locked) Free(p alloc.Ptr, owner Owner) error { return l.c.free(p, owner) }

// Owner returns the owner of the allocated block at an address, or 0.
func (l Locked) Owner(p alloc.Ptr) Owner {
	i := l.c.live.find(p)
	if i == none {
		return noOwner
	}
	return Owner(l.c.blocks.At(i).left)
}

// Stats is Cache.Stats.
func (l Locked) Stats() alloc.Stats { return l.c.now() }

// Notify sets a function that is called for each SegmentEvent when it happens, with the lock
// held: for a new segment, before a block of it is allocated. It must not call the cache. nil
// removes it.
func (l Locked) Notify(atOnce func(SegmentEvent)) { l.c.events.atOnce = atOnce }

// NotifyReusable sets a function that is called, with the lock held, for each block that was
// pending, before it can be reused. The rules are those of Notify.
func (l Locked) NotifyReusable(f func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream)) {
	l.c.pending.reusable = f
}

// AllocOwned is AllocSized for a block with an owner, which enter returns. It calls enter with
// the lock held, just after allocating the block. If enter returns an error, the block is
// freed, and AllocOwned returns that error. Call AllocOwned without the lock. Its other errors
// are those of Alloc.
func (c *Cache) AllocOwned(n alloc.Bytes, enter func(p alloc.Ptr, allocated alloc.Bytes) (Owner, error)) error {
	return c.AllocOwnedOn(n, 0, enter)
}

// AllocOwnedOn is AllocOwned for work on a stream. The errors are those of AllocOwned.
func (c *Cache) AllocOwnedOn(n alloc.Bytes, s alloc.Stream, enter func(p alloc.Ptr, allocated alloc.Bytes) (Owner, error)) error {
	if n < 0 {
		return &alloc.SizeError{Requested: n, Reason: "negative"}
	}
	c.Poll()
	c.mu.Lock()
	c.addLookup(n, 1)
	c.mu.Unlock()
	_, _, err := c.fromDriver(n, s, enter)
	return err
}
