package ledger

import (
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// recentCells remembers cells that were found lately, in slots chosen by call stack, section and
// shape. A cell replaces another one with the same slot, so a caller checks that the cell it finds
// is the right one.
type recentCells struct {
	slots []slab.ID
	shift int // 64 less the bits of an index
}

const (
	fewestRecent = 1 << 10
	mostRecent   = 1 << 16
	perCell      = 8 // slots, so that few cells share one
)

func newRecentCells(slots int) recentCells {
	return recentCells{make([]slab.ID, slots), 64 - bits.TrailingZeros(uint(slots))}
}

// at returns the slot of the tensors of a shape that are allocated at a place.
func (r *recentCells) at(p Place, shape alloc.Shape) *slab.ID {
	h := uint64(p.Stack)<<32 | uint64(p.Section)
	for _, n := range shape {
		h = bits.RotateLeft64(h, 9) ^ uint64(n)
	}
	const multiplier = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	return &r.slots[h*multiplier>>(r.shift&63)]
}

// fit makes room for a number of cells. What was remembered is found anew.
func (r *recentCells) fit(cells int) {
	if n := len(r.slots); cells*perCell > n && n < mostRecent {
		*r = newRecentCells(2 * n)
	}
}
