package tracker

import (
	"iter"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
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
	group *group      // nil for a cell that is not in use
	each  alloc.Bytes // the group's
	place
	line lineID // of the stack

	live   int64 // buffers now
	marked int64 // buffers at the last mark
	total  int64 // buffers ever

	// peak is the count at the ledger's peak if epoch is the ledger's; otherwise
	// nothing has changed here since that peak, and it is live.
	peak  int64
	epoch uint64

	pins         int32   // records that are leaving
	dirty        bool    // changed since the last mark, and so in a list
	newer, older slab.ID // in that list
}

// place is where in a program a buffer was allocated.
type place struct {
	stack   callstack.ID
	section uint32
}

// cells finds the cell of a place and group, and remembers which of them changed
// since the last mark.
type cells struct {
	slab.Slab[cell]
	index  map[cellKey]slab.ID
	groups map[string]*group
	recent recentCells
	dirty  slab.ID // the last that changed

	limit int     // a sweep begins when there are more
	swept slab.ID // the sweep has come so far; 0 if there is none

	// retired holds the buffers ever allocated by the cells that were dropped.
	retired      slab.Slab[retiredEntry]
	retiredIndex map[place]slab.ID
}

type cellKey struct {
	group *group
	place
}

const (
	minCells   = 256
	sweepCells = 16 // looked at for each new cell
)

func newCells() cells {
	return cells{
		index:        make(map[cellKey]slab.ID),
		groups:       make(map[string]*group),
		retiredIndex: make(map[place]slab.ID),
		limit:        minCells,
	}
}

// find returns the cell of a place and a tensor, or 0.
func (cs *cells) find(p place, x *tensor) slab.ID {
	recent := cs.recent.of(p.stack)
	if *recent != 0 {
		if c := cs.At(*recent); c.group != nil && c.place == p && c.group.equal(x) {
			return *recent
		}
	}
	var key [64]byte
	g := cs.groups[string(x.appendKey(key[:0]))]
	if g == nil {
		return 0
	}
	id := cs.index[cellKey{g, p}]
	*recent = id
	return id
}

// at returns the cell of a place and a tensor, making it if it is new. The line is the stack's.
func (cs *cells) at(p place, line lineID, x *tensor, peakEpoch uint64) slab.ID {
	if id := cs.find(p, x); id != 0 {
		return id
	}
	cs.sweep(peakEpoch)
	g := cs.group(x)
	g.cells++
	id, c := cs.Get()
	c.group, c.each, c.place, c.line = g, x.each, p, line
	cs.index[cellKey{g, p}] = id
	return id
}

// readmit returns the cell of a buffer that is live again after it was counted
// out. If its cell was dropped meanwhile, its part of the total goes back.
func (cs *cells) readmit(p place, line lineID, x *tensor, peakEpoch uint64) slab.ID {
	id := cs.at(p, line, x, peakEpoch)
	if c := cs.At(id); c.total == c.live {
		cs.Touch(id)
		c.total++
		at := cs.retiredAt(p)
		cs.retired.Touch(at)
		r := cs.retired.At(at)
		r.total = r.total.Sub(x.tally(1))
	}
	return id
}

// group returns the group of a tensor, making it if it is new.
func (cs *cells) group(x *tensor) *group {
	key := string(x.appendKey(nil))
	g := cs.groups[key]
	if g == nil {
		g = &group{tensor: tensor{x.kind, x.dtype, x.shape.Clone(), x.each}}
		cs.groups[key] = g
	}
	return g
}

// mark puts a cell on the list of those to look at for the next mark.
func (cs *cells) mark(id slab.ID, c *cell) {
	c.dirty, c.newer, c.older = true, 0, cs.dirty
	if cs.dirty != 0 {
		cs.At(cs.dirty).newer = id
	}
	cs.dirty = id
}

// takeDirty iterates over that list, and empties it.
func (cs *cells) takeDirty() iter.Seq[*cell] {
	return func(yield func(*cell) bool) {
		for id := cs.dirty; id != 0; {
			c := cs.At(id)
			cs.Touch(id)
			id = c.older
			c.dirty, c.newer, c.older = false, 0, 0
			yield(c)
		}
		cs.dirty = 0
	}
}

// sweep drops the cells that no mark, no peak and no live buffer needs, a few at
// each call, until there is room for as many again as remain. A program whose
// shapes never repeat thus keeps a bounded table; one whose shapes do repeat
// pays nothing.
func (cs *cells) sweep(peakEpoch uint64) {
	if cs.swept == 0 {
		if cs.Len() < cs.limit {
			return
		}
		cs.swept = 1
	}
	for end := min(cs.swept+sweepCells, cs.Bound()); cs.swept < end; cs.swept++ {
		if c := cs.At(cs.swept); c.group != nil && !c.needed(peakEpoch) {
			cs.retire(cs.swept, c)
		}
	}
	if cs.swept >= cs.Bound() {
		cs.swept, cs.limit = 0, max(minCells, 2*cs.Len())
	}
}

func (cs *cells) retire(id slab.ID, c *cell) {
	at := cs.retiredAt(c.place)
	cs.retired.Touch(at)
	r := cs.retired.At(at)
	r.total = r.total.Add(c.group.tally(c.total))
	if c.dirty {
		cs.unmark(c)
	}
	delete(cs.index, cellKey{c.group, c.place})
	if c.group.cells--; c.group.cells == 0 {
		delete(cs.groups, string(c.group.appendKey(nil)))
	}
	cs.Put(id)
}

// retiredAt returns the entry of a place, making it if it is new.
func (cs *cells) retiredAt(p place) slab.ID {
	id := cs.retiredIndex[p]
	if id == 0 {
		var r *retiredEntry
		id, r = cs.retired.Get()
		r.place = p
		cs.retiredIndex[p] = id
	}
	return id
}

// unmark takes a cell off the list for the next mark.
func (cs *cells) unmark(c *cell) {
	if c.older != 0 {
		cs.At(c.older).newer = c.newer
	}
	if c.newer != 0 {
		cs.At(c.newer).older = c.older
	} else {
		cs.dirty = c.older
	}
}

// needed reports whether the cell still stands for anything but its total.
func (c *cell) needed(peakEpoch uint64) bool {
	return c.live != 0 || c.marked != 0 || c.pins != 0 || c.atPeak(peakEpoch) != 0
}

// atPeak returns the number of buffers at the ledger's peak.
func (c *cell) atPeak(peakEpoch uint64) int64 {
	if c.epoch == peakEpoch {
		return c.peak
	}
	return c.live
}

// recentCells remembers in which cell each call stack allocated last: most
// stacks allocate one shape in one section.
type recentCells struct {
	pages []*[recentInPage]slab.ID // by stack
}

const recentInPage = 1024

func (r *recentCells) of(stack callstack.ID) *slab.ID {
	if stack == callstack.Overflow {
		stack = 0
	}
	page := int(stack / recentInPage)
	if page >= len(r.pages) || r.pages[page] == nil {
		r.addPage(page)
	}
	return &r.pages[page][stack%recentInPage]
}

func (r *recentCells) addPage(page int) {
	for page >= len(r.pages) {
		r.pages = append(r.pages, nil)
	}
	r.pages[page] = new([recentInPage]slab.ID)
}
