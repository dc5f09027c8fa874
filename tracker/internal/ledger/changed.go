package ledger

import (
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// note puts a cell on the list before its count changes.
func (cs *cells) note(id slab.ID, c *Cell) {
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
func (cs *cells) Cut() {
	cs.due, cs.latest = cs.latest, 0
	cs.interval++
}

// Tell fills into with changes between the last two cuts, which nobody was told of yet, and
// reports whether there are more.
func (cs *cells) Tell(into []CellChange) (n int, more bool) {
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

// sinceMark returns how the count differs from that at the last mark, and makes the present the
// last mark.
func (c *Cell) sinceMark() CellChange {
	change := CellChange{c.Group, c.Line, c.Live - c.marked}
	c.marked = c.Live
	return change
}
