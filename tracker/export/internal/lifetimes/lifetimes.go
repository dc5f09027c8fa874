// Package lifetimes counts how long the freed buffers of a history lived, for the histories that are read from files.
package lifetimes

import (
	"maps"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// lifetimeBytes is what a call stack's lifetime takes, as a reader counts it.
const lifetimeBytes = 512

// lifetime counts how long the freed buffers of a call stack lived. The stacks of one line share its unit.
type lifetime struct{ line, path *survival.Unit }

// begin counts an allocation of the line and of the path. live is the entry of a buffer that is live at the end, which stores its
// numbers; otherwise nil.
func (l lifetime) begin(live *tables.AllocationEntry) {
	if live != nil {
		live.InLine, live.InPath = l.line.Allocated, l.path.Allocated
	}
	l.line.Allocated++
	l.path.Allocated++
}

// Add adds the lifetimes of freed buffers to a snapshot's tables, as a tracker counts them at run time. It needs
// events with times. A buffer from before the first event counts as allocated at it. use is asked before memory is taken.
func Add(to *tables.Tables, h *tables.HistoryTables, use func(bytes int64) error) error {
	if h.Start.IsZero() || len(h.Events) == 0 {
		return nil
	}
	counted, err := unitsOf(to, use)
	if err != nil || len(counted) == 0 {
		return err
	}
	live := to.Allocations
	for ; len(live) > 0 && live[0].Seq < h.First; live = live[1:] {
		if lifetime, ok := counted[to.Sites[live[0].Site].Stack]; ok {
			lifetime.begin(&live[0])
		}
	}
	var units survival.Units
	begun := make(map[alloc.Ptr]int) // the event that allocated the buffer at an address
	for i, e := range h.Events {
		var entry *tables.AllocationEntry
		if len(live) > 0 && live[0].Seq == h.First+uint64(i) {
			entry, live = &live[0], live[1:]
		}
		lifetime, ok := counted[e.Stack]
		if !ok {
			continue
		}
		switch walk.Of(e.Action) {
		case walk.Begin:
			lifetime.begin(entry)
			begun[e.Ptr] = i
		case walk.End:
			if from, ok := begun[e.Ptr]; ok {
				units.Freed(lifetime.line, lifetime.path, e.Since-h.Events[from].Since, e.Since, h.First+uint64(i))
				delete(begun, e.Ptr)
			}
		}
	}
	maps.DeleteFunc(to.Lines, func(_ mem.Frame, u *survival.Unit) bool { return u.Last == 0 })
	maps.DeleteFunc(to.Paths, func(_ tables.StackID, u *survival.Unit) bool { return u.Last == 0 })
	return nil
}

// unitsOf makes the units of the lines and call stacks that hold enough buffers to be named, and
// returns those of each stack of such a line.
func unitsOf(to *tables.Tables, use func(bytes int64) error) (map[tables.StackID]lifetime, error) {
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
		l := lifetime{to.Lines[line], new(survival.Unit)}
		if l.line == nil {
			l.line = &survival.Unit{Ages: new(survival.Ages)}
			to.Lines[line] = l.line
		}
		if live >= survival.Fewest {
			to.Paths[stack] = l.path
		}
		found[stack] = l
	}
	return found, nil
}
