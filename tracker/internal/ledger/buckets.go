package ledger

import (
	"math/bits"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// Group is one line of a report: the live buffers of one kind, shape, dtype and type of memory. Its
// identity never changes, so that events may refer to it after the last buffer is gone.
type Group struct {
	tables.Tensor
	cells int // cells that point here
}

// Origin is the part of a cell that Buffers refer to. Unlike the cell it lives as long as anybody
// refers to it. All buffers of a cell share it, so it costs a buffer one pointer to find its owner, its group and its
// call stack.
type Origin[Owner any] struct {
	Owner Owner // of the ledger
	Group *Group
	Stack tables.StackID
}

// Cell is the part of a group that one call stack allocated in one section. All its buffers have
// one size, so everything known by line of code is a count in a cell.
type Cell[Owner any] struct {
	Origin *Origin[Owner]
	Group  *Group      // nil for a cell that is not in use; the origin's
	Each   alloc.Bytes // the group's
	Place
	Line   LineID       // the call site of the stack
	Memory alloc.Memory // the group's

	inLine, inPath *survival.Unit

	Live   int64 // buffers now
	marked int64 // buffers at the last mark
	Total  int64 // buffers ever

	// peak is the count at the ledger's peak if epoch is the ledger's; otherwise
	// nothing has changed here since that peak, and it is live.
	peak  int64
	epoch uint64

	interval     uint64  // interval between two marks in which the cell last changed; 0 if it is on no list
	newer, older slab.ID // neighbours in that interval's list

	pins int32 // records that are leaving
}

// cells finds the cell of a place and group, and remembers which of them changed
// since the last mark.
type cells[Owner any] struct {
	slab.Slab[Cell[Owner]]
	index  map[cellKey]slab.ID
	groups map[string]*Group
	recent recentCells
	Lifetimes
	changed

	owner Owner   // see Origin
	limit int     // a sweep begins when there are more
	swept slab.ID // how far the sweep has come; 0 if there is none

	// retired holds the buffers ever allocated by the cells that were dropped.
	Retired      slab.Slab[tables.RetiredEntry]
	retiredIndex map[retiredKey]slab.ID
}

type retiredKey struct {
	tables.Place
	memory alloc.Memory
}

type cellKey struct {
	group *Group
	Place
}

// Place is the call stack and section of an allocation, and the number of the stream that it is
// for.
type Place struct {
	tables.Place
	Stream uint8
}

const (
	minCells   = 256
	sweepCells = 16 // looked at for each new cell
)

func newCells[Owner any](owner Owner) cells[Owner] {
	return cells[Owner]{
		owner:        owner,
		index:        make(map[cellKey]slab.ID),
		groups:       make(map[string]*Group),
		retiredIndex: make(map[retiredKey]slab.ID),
		limit:        minCells,
		recent:       newRecentCells(fewestRecent),
		changed:      changed{interval: 1},
	}
}

// Recent returns the cell of a place and a tensor if it was found lately, or 0. The tensor need not
// be measured or valid: only valid tensors have a cell.
func (cs *cells[Owner]) Recent(p Place, x *tables.Tensor) slab.ID {
	id := *cs.recent.at(p, x.Shape)
	if id == 0 {
		return 0
	}
	if c := cs.At(id); c.Group == nil || c.Place != p || !x.EqualUnmeasured(&c.Group.Tensor) {
		return 0
	}
	return id
}

// Find returns the cell of a place and a tensor, or 0.
func (cs *cells[Owner]) Find(p Place, x *tables.Tensor) slab.ID {
	var key [64]byte
	g := cs.groups[string(x.AppendKey(key[:0]))]
	if g == nil {
		return 0
	}
	id := cs.index[cellKey{g, p}]
	*cs.recent.at(p, x.Shape) = id
	return id
}

// Make returns the cell of a place and a tensor, making it if it is new. The line is the stack's.
func (cs *cells[Owner]) Make(p Place, line LineID, x *tables.Tensor, peakEpoch uint64) slab.ID {
	if id := cs.Find(p, x); id != 0 {
		return id
	}
	cs.sweep(peakEpoch)
	g := cs.group(x)
	g.cells++
	id, c := cs.Get()
	cs.recent.fit(cs.Len())
	c.Origin = &Origin[Owner]{cs.owner, g, p.Stack}
	c.Group, c.Each, c.Memory, c.Place, c.Line = g, x.Each, x.Memory, p, line
	c.inLine, c.inPath = cs.Lifetimes.line(line), cs.path(p.Stack)
	cs.index[cellKey{g, p}] = id
	return id
}

// Readmit returns the cell of a buffer that is live again after it was counted
// out. If its cell was dropped meanwhile, its part of the total goes back.
func (cs *cells[Owner]) Readmit(p Place, line LineID, x *tables.Tensor, peakEpoch uint64) slab.ID {
	id := cs.Make(p, line, x, peakEpoch)
	if c := cs.At(id); c.Total == c.Live {
		cs.Touch(id)
		c.Total++
		at := cs.retiredAt(retiredKey{p.Place, x.Memory})
		cs.Retired.Touch(at)
		r := cs.Retired.At(at)
		r.Total = r.Total.Sub(x.Tally(1))
	}
	return id
}

// group returns the group of a tensor, making it if it is new.
func (cs *cells[Owner]) group(x *tables.Tensor) *Group {
	key := string(x.AppendKey(nil))
	g := cs.groups[key]
	if g == nil {
		g = &Group{Tensor: x.Clone()}
		cs.groups[key] = g
	}
	return g
}

// sweep drops the cells that no mark, no peak and no live buffer needs, a few at
// each call, until there is room for as many again as remain. A program whose
// shapes never repeat thus keeps a bounded table; one whose shapes do repeat
// pays nothing.
func (cs *cells[Owner]) sweep(peakEpoch uint64) {
	if cs.swept == 0 {
		if cs.Len() < cs.limit {
			return
		}
		cs.swept = 1
	}
	for end := min(cs.swept+sweepCells, cs.Bound()); cs.swept < end; cs.swept++ {
		if c := cs.At(cs.swept); c.Group != nil && !c.needed(peakEpoch) {
			cs.retire(cs.swept, c)
		}
	}
	if cs.swept >= cs.Bound() {
		cs.swept, cs.limit = 0, max(minCells, 2*cs.Len())
	}
}

// WasFreed counts the age at which a buffer of a cell was freed.
func (cs *cells[Owner]) WasFreed(c *Cell[Owner], age, now time.Duration, event uint64) {
	cs.units.Freed(c.inLine, c.inPath, age, now, event)
}

func (cs *cells[Owner]) retire(id slab.ID, c *Cell[Owner]) {
	at := cs.retiredAt(retiredKey{c.Place.Place, c.Memory})
	cs.Retired.Touch(at)
	r := cs.Retired.At(at)
	r.Total = r.Total.Add(c.Group.Tally(c.Total))
	if c.interval != 0 {
		cs.unlist(c)
	}
	delete(cs.index, cellKey{c.Group, c.Place})
	if c.Group.cells--; c.Group.cells == 0 {
		delete(cs.groups, string(c.Group.AppendKey(nil)))
	}
	cs.Put(id)
}

// retiredAt returns the entry of a place and a type of memory, making it if it is new.
func (cs *cells[Owner]) retiredAt(k retiredKey) slab.ID {
	id := cs.retiredIndex[k]
	if id == 0 {
		var r *tables.RetiredEntry
		id, r = cs.Retired.Get()
		r.Place, r.Memory = k.Place, k.memory
		cs.retiredIndex[k] = id
	}
	return id
}

// needed reports whether the cell still counts anything but its total.
func (c *Cell[Owner]) needed(peakEpoch uint64) bool {
	return c.Live != 0 || c.marked != 0 || c.pins != 0 || c.AtPeak(peakEpoch) != 0
}

// AtPeak returns the number of buffers at the ledger's peak.
func (c *Cell[Owner]) AtPeak(peakEpoch uint64) int64 {
	if c.epoch == peakEpoch {
		return c.peak
	}
	return c.Live
}

// changed is the part of cells that knows what changed since the last mark. Cells whose count changes
// between two marks are on a list, so that a mark costs what changed. A mark is of one instant, but
// does not hold the lock for the whole list: Cut begins a new list, and the cells of the old
// one are due. Tell takes some of them at a time. Whoever changes a cell that is due takes it first.
type changed struct {
	interval uint64  // number of the marks, and one
	latest   slab.ID // the head of the list of this interval
	due      slab.ID // the head of the list of the interval before
	early    []CellChange
}

// CellChange is what one cell contributes to a delta.
type CellChange struct {
	Group *Group
	Line  LineID
	Count int64 // may be zero
}

// unlist takes a cell off its list. No view shows lists, so nothing is announced.
func (cs *cells[Owner]) unlist(c *Cell[Owner]) {
	head := &cs.latest
	if c.interval != cs.interval {
		head = &cs.due
	}
	if c.older != 0 {
		cs.At(c.older).newer = c.newer
	}
	if c.newer != 0 {
		cs.At(c.newer).older = c.older
	} else {
		*head = c.older
	}
	c.interval, c.newer, c.older = 0, 0, 0
}

// note puts a cell on the list before its count changes.
func (cs *cells[Owner]) note(id slab.ID, c *Cell[Owner]) {
	if c.interval != 0 { // it is due
		cs.unlist(c)
		cs.early = append(cs.early, c.sinceMark())
	}
	c.interval, c.newer, c.older = cs.interval, 0, cs.latest
	if cs.latest != 0 {
		cs.At(cs.latest).newer = id
	}
	cs.latest = id
}

// Cut makes the present the last mark. tell must have told of the one before.
func (cs *cells[Owner]) Cut() {
	cs.due, cs.latest = cs.latest, 0
	cs.interval++
}

// Tell fills into with changes between the last two cuts that were not told yet. It returns how
// many, and whether there are more.
func (cs *cells[Owner]) Tell(into []CellChange) (n int, more bool) {
	rest := max(0, len(cs.early)-len(into))
	n = copy(into, cs.early[rest:])
	clear(cs.early[rest:])
	cs.early = cs.early[:rest]
	for ; n < len(into) && cs.due != 0; n++ {
		c := cs.At(cs.due)
		cs.unlist(c)
		into[n] = c.sinceMark()
	}
	return n, cs.due != 0 || rest > 0
}

// sinceMark returns how the count changed since the last mark, and makes the present the last mark.
func (c *Cell[Owner]) sinceMark() CellChange {
	change := CellChange{c.Group, c.Line, c.Live - c.marked}
	c.marked = c.Live
	return change
}

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
