package alloc

import "github.com/gpumemtrack/gpumemtrack/internal/slab"

// id names a block record. Records refer to each other by id and not by
// pointer: that halves them, and the Go collector need not look inside.
type id = slab.ID

// none is no block.
const none id = 0

// BlockState says whose a block is.
type BlockState uint8

// The states.
const (
	Inactive  BlockState = iota + 1 // cached, ready for reuse
	Allocated                       // in a caller's hands
)

// String returns "inactive" or "allocated".
func (s BlockState) String() string {
	switch s {
	case Inactive:
		return "inactive"
	case Allocated:
		return "allocated"
	}
	return "unknown"
}

// block is a piece of a segment.
type block struct {
	ptr         Ptr
	size        Bytes
	slack       uint32 // of an allocated block: size - requested, at most 1 MiB + 512
	prev, next  id     // neighbours in the segment, by address
	left, right id     // of an inactive block: links of its pool; of an allocated one, left is its owner
	pool        Pool
	state       BlockState
}

func (b *block) end() Ptr { return b.ptr + Ptr(b.size) }

// whole reports whether the block is all of its segment.
func (b *block) whole() bool { return b.prev == none && b.next == none }

func (b *block) requested() Bytes {
	if b.state != Allocated {
		return 0
	}
	return b.size - Bytes(b.slack)
}
