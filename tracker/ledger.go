package tracker

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// ErrDuplicatePtr is the error of adding an address that the ledger holds live
// already: somebody freed it without telling the tracker, or registered it twice.
var ErrDuplicatePtr = errors.New("address is already live in the ledger")

// ledger is the one account of live buffers. After every call, totals are the
// sum over records and over cells alike. Its methods are not safe for concurrent
// use: the tracker's mutex guards it.
type ledger struct {
	live    map[alloc.Ptr]*record
	cells   cells
	current Tally // requested
	total   Tally // ever
	peak    Tally // count and bytes at the moment of most bytes
	// epoch counts the moments of most bytes; see cell.peak.
	epoch uint64

	// high is the highest level since a section last began or ended.
	high alloc.Bytes

	allocated     alloc.Bytes
	allocatedPeak alloc.Bytes
	registered    alloc.Bytes // the part of allocated that is not the tracker's own

	freed map[callstack.ID]*lifetimes // by call stack
}

func newLedger() ledger {
	return ledger{live: make(map[alloc.Ptr]*record), cells: newCells(), epoch: 1, freed: make(map[callstack.ID]*lifetimes)}
}

// add enters a record. It fails, and changes nothing, if the address is live or
// the sum of bytes would overflow.
func (l *ledger) add(r *record) error {
	if old := l.live[r.ptr]; old != nil {
		return fmt.Errorf("%v: %w, as %v %v", r.ptr, ErrDuplicatePtr, old.cell.group.kind, old.cell.group.shape)
	}
	each := r.cell.group.each
	if each > alloc.MaxBytes-l.current.Bytes || r.allocated > alloc.MaxBytes-l.allocated || each > alloc.MaxBytes-l.total.Bytes {
		return fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", r.ptr, each, l.current.Bytes)
	}
	l.enter(r)
	r.cell.total++
	l.total = l.total.Add(Tally{1, each})
	return nil
}

// enter makes a record live; the caller knows that its address is not.
func (l *ledger) enter(r *record) {
	c := r.cell
	if c.swept {
		l.cells.readmit(c, l.epoch)
	}
	l.live[r.ptr] = r
	l.keepPeak(c)
	c.live++
	l.cells.touch(c)
	l.current.Count++
	l.current.Bytes += c.group.each
	l.allocated += r.allocated
	if r.foreign {
		l.registered += r.allocated
	}
	l.allocatedPeak = max(l.allocatedPeak, l.allocated)
	l.high = max(l.high, l.current.Bytes)
	if l.current.Bytes > l.peak.Bytes {
		l.peak = l.current
		l.epoch++
	}
}

// remove takes a live record out.
func (l *ledger) remove(r *record) {
	c := r.cell
	delete(l.live, r.ptr)
	l.keepPeak(c)
	c.live--
	l.cells.touch(c)
	l.current.Count--
	l.current.Bytes -= c.group.each
	l.allocated -= r.allocated
	if r.foreign {
		l.registered -= r.allocated
	}
}

// wasFreed counts the age that a record reached.
func (l *ledger) wasFreed(r *record, now time.Duration, event uint64) {
	its := l.freed[r.cell.stack]
	if its == nil {
		its = new(lifetimes)
		l.freed[r.cell.stack] = its
	}
	its.freed(now-r.since, event)
}

// keepPeak saves the cell's count at the peak before it first changes after it.
// A new peak starts a new epoch, which forgets every saved count at once: so
// what was live at the peak is known exactly, at the cost of a comparison.
func (l *ledger) keepPeak(c *cell) {
	if c.epoch != l.epoch {
		c.epoch, c.peak = l.epoch, c.live
	}
}

// resetPeak makes the present level the highest.
func (l *ledger) resetPeak() {
	l.peak = l.current
	l.allocatedPeak = l.allocated
	l.epoch++
}

// cut returns the cells that changed since the last cut and their changes in
// count, and makes the present the last cut.
func (l *ledger) cut(into []cellChange) []cellChange {
	for _, c := range l.cells.dirty {
		c.dirty = false
		if n := c.live - c.marked; n != 0 {
			into = append(into, cellChange{cell: c, count: n})
			c.marked = c.live
		}
	}
	clear(l.cells.dirty)
	l.cells.dirty = l.cells.dirty[:0]
	return into
}

// cellChange is what one cell contributes to a delta: its group and stack never
// change, so they may be read without the lock.
type cellChange struct {
	cell  *cell
	count int64
}
