package ledger

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// Lifetimes counts how long the freed buffers of each line and each call stack lived. There are no more lines
// than the program's code has, and no more stacks than are kept; a stack that frees nothing old takes 32 bytes.
type Lifetimes struct {
	units survival.Units
	lines []*survival.Unit // by line; nil where nothing was allocated
	paths []*unitPage      // by stack ID
}

const unitsInPage = 256

type unitPage [unitsInPage]survival.Unit

// line returns the unit of a line, making it if it is new.
func (l *Lifetimes) line(line LineID) *survival.Unit {
	for int(line) >= len(l.lines) {
		l.lines = append(l.lines, nil)
	}
	if l.lines[line] == nil {
		l.lines[line] = new(survival.Unit)
	}
	return l.lines[line]
}

// path returns the unit of a call stack, making it if it is new. All stacks beyond the bound share one.
func (l *Lifetimes) path(stack tables.StackID) *survival.Unit {
	page, at := pathOf(stack)
	for page >= len(l.paths) {
		l.paths = append(l.paths, nil)
	}
	if l.paths[page] == nil {
		l.paths[page] = new(unitPage)
	}
	return &l.paths[page][at]
}

func pathOf(stack tables.StackID) (page, at int) {
	if callstack.ID(stack) == callstack.Overflow {
		stack = 0
	}
	return int(stack / unitsInPage), int(stack % unitsInPage)
}

// CopyLines returns copies of the units of the lines that have freed buffers, by line number. For
// the wanted lines the copies are complete. It takes the lock for one line at a time.
func (l *Lifetimes) CopyLines(lock sync.Locker, wanted func(LineID) bool) map[LineID]*survival.Unit {
	copies := make(map[LineID]*survival.Unit)
	for line := LineID(0); ; line++ {
		lock.Lock()
		if int(line) >= len(l.lines) {
			lock.Unlock()
			return copies
		}
		u := l.lines[line]
		lock.Unlock()
		if u == nil {
			continue
		}
		if own := u.Copy(lock, wanted(line)); own.Last != 0 {
			copies[line] = own
		}
	}
}

// CopyPath returns a copy of the unit of a call stack, or nil if it has freed nothing. It takes the lock.
func (l *Lifetimes) CopyPath(lock sync.Locker, stack tables.StackID) *survival.Unit {
	page, at := pathOf(stack)
	lock.Lock()
	if page >= len(l.paths) || l.paths[page] == nil {
		lock.Unlock()
		return nil
	}
	u := &l.paths[page][at]
	lock.Unlock()
	if own := u.Copy(lock, true); own.Last != 0 {
		return own
	}
	return nil
}
