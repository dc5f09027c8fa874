package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	maxOOMSites = 10
	maxStuck    = 3
)

// outOfMemory returns the error of an allocation that failed for lack of memory,
// and tells the history.
func (t *MemTracker) outOfMemory(err error, stack snapshot.StackID, on alloc.Stream, x snapshot.Tensor) error {
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	section := t.sections.at(here).pathID()
	own := x.Clone()
	e := &OutOfMemoryError{Kind: own.Kind, DType: own.DType, Shape: own.Shape, Section: t.sections.paths.names[section]}
	if !t.ledger.Closed {
		t.history.Add(snapshot.EventEntry{Since: now, Action: snapshot.OutOfMemory, Allocated: x.Each, Stack: stack, Section: uint16(section), Stream: t.ledger.Streams.At(on)})
	}
	t.mu.Unlock()
	if !errors.As(err, &e.OutOfMemoryError) {
		e.OutOfMemoryError = t.unknownOutOfMemory(x.Each, err)
	}
	t.explain(e)
	if t.failing.dir != "" {
		e.Dump, e.DumpErr = t.dumpOutOfMemory(e)
	}
	return e
}

// unknownOutOfMemory is for a device that says no more than that it is full.
func (t *MemTracker) unknownOutOfMemory(requested alloc.Bytes, err error) *alloc.OutOfMemoryError {
	return &alloc.OutOfMemoryError{
		Device:    t.name,
		Requested: requested, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
}

// explain fills in what the tracker knows.
func (t *MemTracker) explain(e *OutOfMemoryError) {
	levels := t.levels()
	e.Inactive, e.Others = -1, -1
	if t.cache != nil {
		e.Inactive = t.cache.Stats().Inactive.Bytes.Current
	}
	if t.failing.others != nil {
		if others, err := t.failing.others(); err == nil {
			e.Others = others
		}
	}
	e.Untracked = levels.Untracked()
	e.Elsewhere = t.cachedElsewhere()
	e.Sites = t.largestLines(maxOOMSites)
	if e.Advice = e.advise(t.failing.untrackedAtStart); e.Advice == Fragmented {
		e.Stuck = t.stuck(maxStuck)
	}
}

// largestLines returns the lines of code that hold most. It costs some
// nanoseconds for each cell, and names nothing that it does not return.
func (t *MemTracker) largestLines(n int) []snapshot.SiteTally {
	t.mu.Lock()
	cells := t.ledger.Cells.View()
	t.mu.Unlock()
	var held []snapshot.Tally // by line
	cells.Read(t.mu, func(_ slab.ID, records []ledger.Cell) {
		for i := range records {
			c := &records[i]
			if c.Live == 0 || c.Memory.OnHost() != t.onHost {
				continue
			}
			for int(c.Line) >= len(held) {
				held = append(held, snapshot.Tally{})
			}
			count(&held[c.Line], c.Live, alloc.Bytes(c.Live)*c.Each)
		}
	})
	var lines []ledger.LineID
	for line, sum := range held {
		if sum.Count != 0 {
			lines = append(lines, ledger.LineID(line))
		}
	}
	slices.SortFunc(lines, func(x, y ledger.LineID) int { return cmp.Compare(held[y].Bytes, held[x].Bytes) })
	lines = lines[:min(n, len(lines))]
	largest := make([]snapshot.SiteTally, len(lines))
	for i, line := range lines {
		largest[i] = snapshot.SiteTally{Frame: t.stacks.Frame(line), Tally: held[line]}
	}
	return largest
}

// dumpOutOfMemory writes the dump of one of the first failures: they tell most,
// and a program that fails over and over must not write forever.
func (t *MemTracker) dumpOutOfMemory(e *OutOfMemoryError) (string, error) {
	if t.failing.dumps.Add(1) > int64(t.dumps.max) {
		return "", fmt.Errorf("%d were written already: see Config.MaxDumps", t.dumps.max)
	}
	d, err := t.newDump(e.Error(), t.dumps.maxBytes)
	if err != nil {
		return "", err
	}
	d.OOM = &snapshot.OOM{
		Requested: e.Requested, Kind: e.Kind, DType: e.DType, Shape: e.Shape, Section: e.Section,
		Free: e.Free, Total: e.Total, Reserved: e.Reserved, Inactive: e.Inactive, LargestInactive: e.LargestInactive,
		Untracked: e.Untracked, Elsewhere: e.Elsewhere, Others: e.Others, Sites: e.Sites, Advice: e.advice(),
	}
	return t.dumps.save(t.failing.dir, d)
}
