package alloc

import (
	"errors"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/slab"
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

// Owner is a number by which a ledger knows an allocated block again. Zero is
// none. A block with an owner is freed by Locked.Free alone: Cache.Free refuses it
// with ErrOwned, since the ledger would not hear of it.
type Owner uint32

const noOwner Owner = 0

// Locker returns the cache's lock. Hold it for a microsecond at most: every
// Alloc and Free waits.
func (c *Cache) Locker() sync.Locker { return &c.mu }

// Locked returns the cache for who holds its lock.
func (c *Cache) Locked() Locked { return Locked{c} }

// Alloc gives n bytes from the cache; ok is false if the driver must be asked,
// see AllocOwned, and if n is negative.
func (l Locked) Alloc(n Bytes, owner Owner) (p Ptr, allocated Bytes, ok bool) {
	if n < 0 {
		return 0, 0, false
	}
	b := l.c.fromCache(n, owner)
	if b == nil {
		return 0, 0, false
	}
	return b.ptr, b.size, true
}

// Free is Cache.Free for a block of that owner. Any other address is
// ErrUnknownPtr or ErrDoubleFree.
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

// AllocOwned is AllocSized for a block with an owner, which enter returns. It is
// called with the lock held, when the block has just been allocated, from the
// cache or the driver. If it returns an error, the block is free again, and the
// error is AllocOwned's. Call AllocOwned without the lock.
func (c *Cache) AllocOwned(n Bytes, enter func(p Ptr, allocated Bytes) (Owner, error)) error {
	if n < 0 {
		return &SizeError{Requested: n, Reason: "negative"}
	}
	_, _, err := c.fromDriver(n, enter)
	return err
}

// enter tells the ledger of a new block, and returns the number by which it
// knows it.
type enter func(p Ptr, allocated Bytes) (Owner, error)

// handOut gives a block, just taken, to who asked for it: a ledger, if enter
// is not nil. The caller holds mu.
func (c *Cache) handOut(b *block, enter enter) (Ptr, Bytes, error) {
	p, size := b.ptr, b.size
	if enter == nil {
		return p, size, nil
	}
	owner, err := enter(p, size)
	if err != nil {
		return 0, 0, errors.Join(err, c.free(p, noOwner))
	}
	b.left = id(owner)
	return p, size, nil
}

// Cut is the cache's segments at one instant, not copied yet.
type Cut struct {
	c        *Cache
	segments []segment
	blocks   *slab.View[block]
}

// Cut returns the segments of this instant. Call Segments soon, and once: until then,
// changes to the cache cost copies.
func (l Locked) Cut() *Cut {
	return &Cut{c: l.c, segments: slices.Clone(l.c.segments), blocks: l.c.blocks.View()}
}

// Segments copies the segments, in address order. Call it without the lock.
func (cut *Cut) Segments() []Segment {
	blocks := make([]block, cut.blocks.Bound())
	used := 0
	cut.blocks.Read(&cut.c.mu, func(first id, records *[slab.ChunkLen]block) {
		copy(blocks[first:], records[:])
	})
	for i := range blocks {
		if blocks[i].state != 0 {
			used++
		}
	}
	segments := make([]Segment, 0, len(cut.segments))
	public := make([]Block, 0, used)
	for _, s := range cut.segments {
		first := len(public)
		for i := s.first; i != none; i = blocks[i].next {
			b := &blocks[i]
			public = append(public, Block{Ptr: b.ptr, Size: b.size, Requested: b.requested(), State: b.state})
		}
		segments = append(segments, Segment{Ptr: s.ptr, Size: s.size, Pool: s.pool, blocks: slices.Clip(public[first:])})
	}
	return segments
}
