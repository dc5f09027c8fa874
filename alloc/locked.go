package alloc

import (
	"sync"
)

// Locked is a Cache for who holds its lock, and so what keeps a ledger of the
// cache's blocks needs: both change in one step, and nobody sees one without the other. Package
// tracker uses it.
//
//	lock := cache.Locker()
//	lock.Lock()
//	p, allocated, ok := cache.Locked().Alloc(n, owner)
//	... // enter p in the ledger
//	lock.Unlock()
//
// All of the Cache's other methods would wait for the lock forever.
type Locked struct {
	c *Cache
}

// Locker returns the cache's lock. Hold it for a microsecond at most: every
// Alloc and Free waits.
func (c *Cache) Locker() sync.Locker { return &c.mu }

// Locked returns the cache for who holds its lock.
func (c *Cache) Locked() Locked { return Locked{c} }

// Alloc gives n bytes from the cache; ok is false if the driver must be asked,
// see AllocOwned, and if n is negative.
func (l Locked) Alloc(n Bytes, owner Owner) (p Ptr, allocated Bytes, ok bool) {
	return l.AllocOn(n, 0, owner)
}

// AllocOn is Alloc for work on a stream, as Cache.AllocOn; if ok is false, see AllocOwnedOn.
// If there are pending blocks, call Cache.Poll first, without the lock.
func (l Locked) AllocOn(n Bytes, s Stream, owner Owner) (p Ptr, allocated Bytes, ok bool) {
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
func (l Locked) RecordStream(p Ptr, s Stream) error { return l.c.recordStream(p, s) }

// Pending reports whether there are pending blocks.
func (l Locked) Pending() bool { return l.c.pending.count != 0 }

// Unmarked reports whether blocks wait for Cache.Poll to record their events; see Free.
func (l Locked) Unmarked() bool { return len(l.c.pending.fresh) != 0 }

// Free is Cache.Free for a block of that owner. Any other address is
// ErrUnknownPtr or ErrDoubleFree. If other streams use the block, call Cache.Poll without the lock
// soon: its events are recorded then, or else at the next AllocOwned.
func (l Locked) Free(p Ptr, owner Owner) error { return l.c.free(p, owner) }

// Owner returns the owner of the allocated block at an address, or 0.
func (l Locked) Owner(p Ptr) Owner {
	i := l.c.live.find(p)
	if i == none {
		return noOwner
	}
	return Owner(l.c.blocks.At(i).left)
}

// Stats is Cache.Stats.
func (l Locked) Stats() Stats { return l.c.now() }

// Notify has a function told of each SegmentEvent with the lock held, when it
// happens: of a new segment before any block of it is allocated. It must not
// call the cache. There is one such function; nil is none.
func (l Locked) Notify(atOnce func(SegmentEvent)) { l.c.events.atOnce = atOnce }

// NotifyReusable has a function told, with the lock held, of each block that was pending and can be
// handed out again, before it is. The rules are those of Notify.
func (l Locked) NotifyReusable(f func(p Ptr, n Bytes, s Stream)) { l.c.pending.reusable = f }

// AllocOwned is AllocSized for a block with an owner, which enter returns. It is
// called with the lock held, when the block has just been allocated, from the
// cache or the driver. If it returns an error, the block is free again, and the
// error is AllocOwned's. Call AllocOwned without the lock.
func (c *Cache) AllocOwned(n Bytes, enter func(p Ptr, allocated Bytes) (Owner, error)) error {
	return c.AllocOwnedOn(n, 0, enter)
}

// AllocOwnedOn is AllocOwned for work on a stream. The errors are those of AllocOwned.
func (c *Cache) AllocOwnedOn(n Bytes, s Stream, enter func(p Ptr, allocated Bytes) (Owner, error)) error {
	if n < 0 {
		return &SizeError{Requested: n, Reason: "negative"}
	}
	c.Poll()
	c.mu.Lock()
	c.addLookup(n, 1)
	c.mu.Unlock()
	_, _, err := c.fromDriver(n, s, enter)
	return err
}
