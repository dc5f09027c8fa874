// Package cachelock has the interface through which a ledger of blocks uses a caching allocator: both change in
// one step, under one lock, so that no goroutine sees one changed without the other. Method Locked of a cache.Cache
// returns it.
package cachelock

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// Cache is a cache for a caller that holds its lock. Hold it for a microsecond at most, because every Alloc and Free
// waits for it. The methods need the lock, except where they say that they take it.
//
//	locked.PollAndLock()
//	block, p, allocated, ok := locked.Alloc(n, stream, owner)
//	... // enter p in the ledger
//	locked.Mutex().Unlock()
//
// The cache's own methods would wait for the lock forever.
type Cache interface {
	Mutex() *spinlock.Mutex

	// Alloc allocates n bytes for work on a stream from inactive memory. ok is false if n is negative or the
	// driver must be asked: see AllocSlow.
	Alloc(n alloc.Bytes, s alloc.Stream, owner Owner) (b Block, p alloc.Ptr, allocated alloc.Bytes, ok bool)
	// Free frees the block of that owner at p. Any other is alloc.ErrUnknownPtr, alloc.ErrDoubleFree or ErrOwned.
	// If needsPoll, call Poll soon: other streams use the block, and their events are not recorded yet.
	Free(b Block, p alloc.Ptr, owner Owner) (needsPoll bool, err error)
	// RecordStream is the cache's RecordStream, for the block of an owner.
	RecordStream(b Block, s alloc.Stream) error
	// Owner returns the owner of the allocated block at an address, or 0. It looks at the blocks of a segment one
	// by one.
	Owner(p alloc.Ptr) Owner

	// Memory is alloc.VirtualMemory if the cache's segments are expandable, otherwise the type of its
	// device's memory.
	Memory() alloc.Memory
	// Stats is the cache's Stats.
	Stats() alloc.Stats
	// Cut is the cache's segments at this instant.
	Cut() Cut
	// Notify sets functions that are called with the lock held and must not call the cache: segment
	// for each Event when it happens, and reusable for each block that was pending, before it can
	// be reused. Either may be nil.
	Notify(segment func(Event), reusable func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream))

	// PollAndLock takes the lock, and first makes blocks available that are pending although their work is done.
	PollAndLock()
	// AllocSlow, called without the lock, allocates as Alloc for an owner that register returns. The driver may be
	// asked. register is called with the lock held, just after the block is allocated. If it returns an
	// error, the block is freed, and AllocSlow returns that error.
	AllocSlow(n alloc.Bytes, s alloc.Stream, register Register) error
	// Poll, called without the lock, makes pending blocks inactive if their work is done. It does not wait.
	Poll()
}

// Block is the number of an allocated block, until it is freed. A cache finds a block by it, and not by its address.
type Block uint32

// Owner is a number by which a ledger identifies an allocated block. Zero is no owner. A block with an
// owner is not freed by the cache's own Free, because the ledger would not see it.
type Owner uint32

// Register enters a new block in the ledger, and returns the ledger's number for it, which is not 0.
type Register func(b Block, p alloc.Ptr, allocated alloc.Bytes) (Owner, error)

// ErrOwned is the error of the cache's own Free for a block with an owner.
var ErrOwned = errors.New("it belongs to a tracker's Buffer: call the Buffer's Free")

// Cut is a cache's segments at one instant, before they are copied. Until Segments, changes to the cache
// cost copies.
type Cut interface {
	// Segments copies the segments, in address order. Call it once, without the lock.
	Segments() []alloc.Segment
}

// Event is something that happened between a cache and its driver.
type Event struct {
	Action Action
	Ptr    alloc.Ptr    // of the segment, or of the part; 0 for Retry and OutOfMemory
	Size   alloc.Bytes  // of the same, or the segment asked for; the request's for OutOfMemory
	Stream alloc.Stream // that the memory is for
}

// Action says what happened. All but Retry have the names of PyTorch's snapshots.
type Action string

// The actions.
const (
	SegmentAlloc Action = "segment_alloc" // no block of it is allocated yet
	SegmentFree  Action = "segment_free"  // the driver has it back
	SegmentMap   Action = "segment_map"   // an expandable segment grew by Size
	SegmentUnmap Action = "segment_unmap" // the driver has a part of a segment back
	Retry        Action = "retry"         // out of memory; inactive segments go back now
	OutOfMemory  Action = "oom"           // still out of memory
)
