package alloc

import "github.com/gpumemtrack/gpumemtrack/internal/slab"

// id names a block record. Records refer to each other by id and not by
// pointer: that halves them, and the Go collector need not look inside.
type id = slab.ID

// none is no block.
const none id = 0

// BlockState is the state of a block.
type BlockState uint8

// The states.
const (
	Inactive  BlockState = iota + 1 // cached, ready for reuse
	Allocated                       // in a caller's hands
	Pending                         // freed, but work on another stream may still use it
)

// unmapped is the state of addresses without memory, in an expandable segment. Nobody
// outside of the package sees such a block.
const unmapped = Pending + 1

// String returns "inactive", "allocated" or "pending".
func (s BlockState) String() string {
	switch s {
	case Inactive:
		return "inactive"
	case Allocated:
		return "allocated"
	case Pending:
		return "pending"
	}
	return "unknown"
}

// block is a piece of a segment.
type block struct {
	ptr         Ptr
	size        Bytes
	slack       uint32 // the low bits of size - requested; of an inactive block, when it became that
	prev, next  id     // neighbours in the segment, by address
	left, right id     // of an inactive block: links of its pool; of others, the owner, and the high bits of slack
	pool        Pool
	state       BlockState
	stream      streamID // that it is for
}

func (b *block) end() Ptr { return b.ptr + Ptr(b.size) }

// whole reports whether the block is all of its segment.
func (b *block) whole() bool { return b.prev == none && b.next == none }

func (b *block) requested() Bytes {
	if b.state != Allocated && b.state != Pending {
		return 0
	}
	return b.size - (Bytes(b.right)<<32 | Bytes(b.slack))
}

func (b *block) setSlack(slack Bytes) {
	b.slack, b.right = uint32(slack), id(slack>>32) // some settings round up by many GiB
}

// Owner is a number by which a ledger identifies an allocated block. Zero is no owner. Only
// Locked.Free frees a block with an owner: Cache.Free returns ErrOwned, because the ledger
// would not see that free.
type Owner uint32

const noOwner Owner = 0
