package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// id names a block record. Records refer to each other by id and not by
// pointer: that halves them, and the Go collector need not scan them.
type id = slab.ID

// none is no block.
const none id = 0

// unmapped is the state of addresses without memory in an expandable segment. Such blocks are never
// visible outside of the package.
const unmapped = alloc.Pending + 1

// block is a piece of a segment.
type block struct {
	ptr         alloc.Ptr
	size        alloc.Bytes
	slack       uint32 // low bits of size - requested; for an inactive block, the time when it became inactive
	prev, next  id     // neighbours in the segment, by address
	left, right id     // for an inactive block: links in its pool; for others: the owner, and the high bits of slack
	pool        pool
	state       alloc.BlockState
	stream      streamID // the stream that it was allocated for
}

func (b *block) end() alloc.Ptr { return b.ptr + alloc.Ptr(b.size) }

// fillsSegment reports whether the block is all of its segment.
func (b *block) fillsSegment() bool { return b.prev == none && b.next == none }

func (b *block) requested() alloc.Bytes {
	if b.state != alloc.Allocated && b.state != alloc.Pending {
		return 0
	}
	return b.size - (alloc.Bytes(b.right)<<32 | alloc.Bytes(b.slack))
}

func (b *block) setSlack(slack alloc.Bytes) {
	b.slack, b.right = uint32(slack), id(slack>>32) // some settings round up by many GiB
}

// noOwner is the owner of a block that no ledger has.
const noOwner cachelock.Owner = 0

// table finds the allocated blocks that have no owner by their address. An owner knows the number of its block.
type table struct {
	blocks    *slab.Slab[block]
	addresses addrtable.Table
}

func newTable(blocks *slab.Slab[block]) table { return table{blocks, addrtable.New()} }

// add enters a block and its address, which must not be in the table.
func (t *table) add(i id, p alloc.Ptr) { t.addresses.Add(uint64(p), i) }

// find returns the block at an address, or none.
func (t *table) find(p alloc.Ptr) id {
	search := t.addresses.Look(uint64(p))
	return t.next(&search, p)
}

// next moves a search on to the block at an address, and returns it, or none.
func (t *table) next(search *addrtable.Search, p alloc.Ptr) id {
	for {
		i := search.Next()
		if i == none || t.blocks.At(i).ptr == p {
			return i
		}
	}
}

// remove takes out the block at an address, and returns it, or none.
func (t *table) remove(p alloc.Ptr) id {
	search := t.addresses.Look(uint64(p))
	i := t.next(&search, p)
	if i != none {
		t.addresses.Remove(&search)
	}
	return i
}
