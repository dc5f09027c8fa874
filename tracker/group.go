package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// group is what a line of a report counts: the live buffers of one kind, shape
// and dtype. Its identity never changes, so that events may refer to it after
// the last buffer is gone.
type group struct {
	tensor
	cells int // cells that point here
}

// cell is the part of a group that one call stack allocated in one section. All
// that is known by line of code is a count in a cell, since every buffer of it has
// the same size.
type cell struct {
	group   *group
	stack   callstack.ID
	section uint32 // path
	hash    uint64 // of group identity, stack and section

	live   int64 // buffers now
	marked int64 // buffers at the last mark
	total  int64 // buffers ever

	// peak is the count at the ledger's peak if epoch is the ledger's; otherwise
	// nothing has changed here since that peak, and it is live.
	peak  int64
	epoch uint64

	copied int32 // index in the snapshot that is being made
	dirty  bool  // stands in cells.dirty
	swept  bool  // is not in the table any more
}

// place is where in a program a buffer was allocated.
type place struct {
	stack   callstack.ID
	section uint32
}

func (c *cell) place() place { return place{c.stack, c.section} }

// cells finds the cell of a place and group in constant time, and remembers
// which of them changed since the last mark. It is an open addressing table:
// cells leave it only in sweep, which builds it anew.
type cells struct {
	slots  []*cell // length a power of two, at most half full
	count  int
	limit  int // sweep before the count goes beyond this
	dirty  []*cell
	groups map[string]*group

	// retired holds the buffers ever allocated by the cells that were swept.
	retired map[place]Tally
}

const minCells = 256

func newCells() cells {
	return cells{
		slots:   make([]*cell, 2*minCells),
		limit:   minCells,
		groups:  make(map[string]*group),
		retired: make(map[place]Tally),
	}
}

// at returns the cell of a place and a tensor, making it if it is new.
func (cs *cells) at(p place, x tensor, peakEpoch uint64) *cell {
	hash := cellHash(p, x)
	mask := uint64(len(cs.slots) - 1)
	for i := hash & mask; cs.slots[i] != nil; i = (i + 1) & mask {
		c := cs.slots[i]
		if c.hash == hash && c.place() == p && c.group.equal(x) {
			return c
		}
	}
	cs.makeRoom(peakEpoch)
	c := &cell{group: cs.group(x), stack: p.stack, section: p.section, hash: hash}
	c.group.cells++
	cs.insert(c)
	return c
}

// makeRoom makes room for one cell.
func (cs *cells) makeRoom(peakEpoch uint64) {
	if cs.count >= cs.limit {
		cs.sweep(peakEpoch)
	}
}

// readmit takes a cell back that was swept when its last buffer was being freed,
// which then failed. If the key has a new cell by now, it has two: their counts add up.
func (cs *cells) readmit(c *cell, peakEpoch uint64) {
	left := cs.retired[c.place()].Sub(c.group.tally(c.total))
	if left.IsZero() {
		delete(cs.retired, c.place())
	} else {
		cs.retired[c.place()] = left
	}
	c.swept, c.dirty = false, false
	cs.makeRoom(peakEpoch)
	c.group.cells++
	cs.insert(c)
}

func (cs *cells) insert(c *cell) {
	mask := uint64(len(cs.slots) - 1)
	i := c.hash & mask
	for cs.slots[i] != nil {
		i = (i + 1) & mask
	}
	cs.slots[i] = c
	cs.count++
}

// group returns the group of a tensor, making it if it is new.
func (cs *cells) group(x tensor) *group {
	key := x.key()
	g := cs.groups[key]
	if g == nil {
		g = &group{tensor: tensor{x.kind, x.dtype, x.shape.Clone(), x.each}}
		cs.groups[key] = g
	}
	return g
}

// touch puts the cell on the list of those to look at for the next mark.
func (cs *cells) touch(c *cell) {
	if !c.dirty {
		c.dirty = true
		cs.dirty = append(cs.dirty, c)
	}
}

// sweep drops the cells that no mark, no peak and no live buffer needs, and
// makes room for as many again as remain. A program whose shapes never repeat
// thus keeps a bounded table; one whose shapes do repeat pays nothing.
func (cs *cells) sweep(peakEpoch uint64) {
	old := cs.slots
	kept := 0
	for _, c := range old {
		if c != nil && c.needed(peakEpoch) {
			kept++
		}
	}
	cs.limit = max(minCells, 2*kept)
	size := 2 * minCells
	for size < 2*cs.limit {
		size *= 2
	}
	cs.slots, cs.count = make([]*cell, size), 0
	for _, c := range old {
		switch {
		case c == nil:
		case c.needed(peakEpoch):
			cs.insert(c)
		default:
			cs.retire(c)
		}
	}
	stillDirty := cs.dirty[:0]
	for _, c := range cs.dirty {
		if c.needed(peakEpoch) {
			stillDirty = append(stillDirty, c)
		}
	}
	clear(cs.dirty[len(stillDirty):])
	cs.dirty = stillDirty
}

func (cs *cells) retire(c *cell) {
	cs.retired[c.place()] = cs.retired[c.place()].Add(c.group.tally(c.total))
	c.swept = true
	c.group.cells--
	if g := c.group; g.cells == 0 {
		delete(cs.groups, g.key())
	}
}

// needed reports whether the cell still stands for anything but its total.
func (c *cell) needed(peakEpoch uint64) bool {
	return c.live != 0 || c.marked != 0 || c.atPeak(peakEpoch) != 0
}

// atPeak returns the number of buffers at the ledger's peak.
func (c *cell) atPeak(peakEpoch uint64) int64 {
	if c.epoch == peakEpoch {
		return c.peak
	}
	return c.live
}

// cellHash mixes by multiplying with the 64-bit golden ratio.
func cellHash(p place, x tensor) uint64 {
	const phi = 0x9e3779b97f4a7c15
	h := (uint64(p.section)<<48 ^ uint64(p.stack)<<16 | uint64(x.kind)<<8 | uint64(x.dtype)) * phi
	for _, dim := range x.shape {
		h = (h ^ h>>29 ^ uint64(dim)) * phi
	}
	return h ^ h>>32
}
