package tablejson

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// unitJSON is a survival.Unit.
type unitJSON struct {
	Ages   []uint32   `json:"ages"` // how many lived less than 2^10 ns, 2^11 ns and so on
	Last   uint64     `json:"last"` // number of the event in which the last buffer was freed
	Width  int64      `json:"window_ns,omitempty"`
	Old    [][]uint32 `json:"old,omitempty"` // counts by the window of the free and, within it, the window of the allocation
	Missed bool       `json:"old_missed,omitempty"`
}

// lifetimesJSON is the unit of a line.
type lifetimesJSON struct {
	Site mem.Frame `json:"call_site"`
	unitJSON
}

// pathJSON is the unit of a call stack.
type pathJSON struct {
	Stack int `json:"stack"` // index in stacks; -1 is unknown
	unitJSON
}

// newUnitJSON returns the form of a unit, with windows if they are of use.
func newUnitJSON(u *survival.Unit, windows bool) unitJSON {
	out := unitJSON{Ages: []uint32{}, Last: u.Last, Missed: u.Missed}
	if u.Ages != nil {
		out.Ages = u.Ages[:]
		for n := len(out.Ages); n > 0 && out.Ages[n-1] == 0; n-- {
			out.Ages = out.Ages[:n-1]
		}
	}
	if u.Grown != nil && windows {
		var width time.Duration
		width, out.Old = u.Grown.Rows()
		out.Width = int64(width)
	}
	return out
}

func (in *unitJSON) load() (*survival.Unit, error) {
	u := &survival.Unit{Ages: new(survival.Ages), Last: in.Last, Missed: in.Missed}
	if len(in.Ages) > len(u.Ages) || in.Last == 0 {
		return nil, fmt.Errorf("%d ages, the last of event %d", len(in.Ages), in.Last)
	}
	copy(u.Ages[:], in.Ages)
	if in.Width != 0 || in.Old != nil {
		var err error
		if u.Grown, err = survival.ReadTriangle(time.Duration(in.Width), in.Old); err != nil {
			return nil, err
		}
	}
	return u, nil
}

func writeLifetimes(out *jsonstream.Writer, t *tables.Tables, index map[tables.StackID]int) {
	if len(t.Lines) > 0 {
		lines := slices.SortedFunc(maps.Keys(t.Lines), tables.CompareFrames)
		jsonstream.Table(out, "lifetimes", lines, jsonstream.AsJSON(func(site mem.Frame) any {
			return lifetimesJSON{site, newUnitJSON(t.Lines[site], t.Paths != nil)}
		}))
	}
	if t.Paths == nil {
		return
	}
	paths := make([]tables.StackID, 0, len(t.Paths))
	for stack := range t.Paths {
		if _, ok := index[stack]; ok {
			paths = append(paths, stack)
		}
	}
	slices.SortFunc(paths, func(a, b tables.StackID) int { return cmp.Compare(index[a], index[b]) })
	jsonstream.Table(out, "paths", paths, jsonstream.AsJSON(func(stack tables.StackID) any {
		return pathJSON{index[stack], newUnitJSON(t.Paths[stack], true)}
	}))
}

// ordinals returns an allocation's ordinals in its line and in its path, if its source counts them.
func ordinals(t *tables.Tables, a tables.AllocationEntry) [2]uint16 {
	if t.Paths == nil {
		return [2]uint16{}
	}
	return [2]uint16{a.InLine, a.InPath}
}

// lifetimes enters how long freed buffers lived.
func (l *tableLoader) lifetimes(in *Snapshot) error {
	l.Lines = make(map[mem.Frame]*survival.Unit, len(in.Lifetimes))
	for i := range in.Lifetimes {
		unit, err := in.Lifetimes[i].load()
		if err != nil {
			return fmt.Errorf("lifetimes %d: %w", i, err)
		}
		l.Lines[in.Lifetimes[i].Site] = unit
	}
	if !in.counted {
		return nil
	}
	l.Paths = make(map[tables.StackID]*survival.Unit, len(in.Paths))
	for i := range in.Paths {
		unit, err := in.Paths[i].load()
		if err != nil {
			return fmt.Errorf("path %d: %w", i, err)
		}
		stack := in.Paths[i].Stack
		if stack < -1 || stack >= len(in.Stacks) {
			return fmt.Errorf("path %d: stack %d of %d", i, stack, len(in.Stacks))
		}
		l.Paths[tables.StackID(stack+1)] = unit
	}
	return nil
}
