package torch

import (
	"maps"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// lifetimeBytes is what a call stack's lifetime takes, as plain.Data.Use counts it.
const lifetimeBytes = 512

// lifetime counts how long the freed buffers of a call stack lived. The stacks of one line share its unit.
type lifetime struct{ line, path *survival.Unit }

// born numbers a buffer of the line and of the path. A live one keeps its numbers; live is nil of others.
func (l lifetime) born(live *tables.AllocationEntry) {
	if live != nil {
		live.InLine, live.InPath = l.line.Births, l.path.Births
	}
	l.line.Births++
	l.path.Births++
}

// addLifetimes enters into a snapshot's tables how long its freed buffers lived, as a tracker counts it
// while its program runs. Only events tell, if they have times. A buffer that is older than they are
// counts as allocated when they begin. use is asked before memory is taken.
func addLifetimes(to *tables.Tables, h *tables.HistoryTables, use func(bytes int64) error) error {
	if h.Start.IsZero() || len(h.Events) == 0 {
		return nil
	}
	counted, err := lifetimes(to, use)
	if err != nil || len(counted) == 0 {
		return err
	}
	live := to.Allocations
	for ; len(live) > 0 && live[0].Seq < h.First; live = live[1:] {
		if its, ok := counted[to.Sites[live[0].Site].Stack]; ok {
			its.born(&live[0])
		}
	}
	var units survival.Units
	begun := make(map[alloc.Ptr]int) // the entry of the buffer that is live at an address
	for i, e := range h.Events {
		var is *tables.AllocationEntry
		if len(live) > 0 && live[0].Seq == h.First+uint64(i) {
			is, live = &live[0], live[1:]
		}
		its, ok := counted[e.Stack]
		if !ok {
			continue
		}
		switch walk.Of(e.Action) {
		case walk.Begin:
			its.born(is)
			begun[e.Ptr] = i
		case walk.End:
			if i, ok := begun[e.Ptr]; ok {
				units.Freed(its.line, its.path, e.Since-h.Events[i].Since, e.Since, h.First+uint64(i))
				delete(begun, e.Ptr)
			}
		}
	}
	maps.DeleteFunc(to.Lines, func(_ mem.Frame, u *survival.Unit) bool { return u.Last == 0 })
	maps.DeleteFunc(to.Paths, func(_ tables.StackID, u *survival.Unit) bool { return u.Last == 0 })
	return nil
}

// lifetimes makes the units of the lines and call stacks that hold enough buffers to be named, and
// returns those of each stack of such a line.
func lifetimes(to *tables.Tables, use func(bytes int64) error) (map[tables.StackID]lifetime, error) {
	to.Lines, to.Paths = make(map[mem.Frame]*survival.Unit), make(map[tables.StackID]*survival.Unit)
	lines, stacks := make(map[mem.Frame]int64), make(map[tables.StackID]int64)
	for _, s := range to.Sites {
		if s.Stack != 0 {
			lines[to.Stacks.Site(s.Stack)] += s.Live
			stacks[s.Stack] += s.Live
		}
	}
	found := make(map[tables.StackID]lifetime)
	for stack, live := range stacks {
		line := to.Stacks.Site(stack)
		if lines[line] < survival.Fewest {
			continue
		}
		if err := use(lifetimeBytes); err != nil {
			return nil, err
		}
		its := lifetime{to.Lines[line], new(survival.Unit)}
		if its.line == nil {
			its.line = &survival.Unit{Ages: new(survival.Ages)}
			to.Lines[line] = its.line
		}
		if live >= survival.Fewest {
			to.Paths[stack] = its.path
		}
		found[stack] = its
	}
	return found, nil
}
