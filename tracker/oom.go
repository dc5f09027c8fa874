package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// OutOfMemoryError is the error of an Alloc that the device has no memory for,
// with what is needed to act. It unwraps to the *alloc.OutOfMemoryError. An
// amount that is not known is -1.
type OutOfMemoryError struct {
	*alloc.OutOfMemoryError // Requested, Free, Reserved, LargestInactive: the largest hole in the cache

	Kind    Kind
	DType   alloc.DType
	Shape   alloc.Shape
	Section string

	Inactive  alloc.Bytes // the part of Reserved that is cached
	Untracked alloc.Bytes // see Levels
	Elsewhere alloc.Bytes // what other trackers of this process have cached on the device, and could give back
	Others    alloc.Bytes // what other processes hold, if Config.OtherProcesses tells

	Sites  []SiteTally // the lines of code that hold most, up to ten
	Advice Advice
	// Dump is the path of the dump that was written, if Config.OOMDir asks for
	// one; DumpErr says why there is none.
	Dump    string
	DumpErr error
}

const maxOOMSites = 10

// failing is what a tracker keeps for the allocations that fail.
type failing struct {
	dir              string       // of dumps; "" is none
	dumps            atomic.Int64 // written for lack of memory, and left out since they were too many
	others           func() (alloc.Bytes, error)
	untrackedAtStart alloc.Bytes
}

// Error prints all of it, on several lines.
func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "alloc %v %v %v: %v on %s: %v requested", e.Kind, e.Shape, e.DType, alloc.ErrOutOfMemory, e.Device, e.Requested)
	if e.Section != "" {
		fmt.Fprintf(&b, " in section %q", e.Section)
	}
	fmt.Fprintf(&b, "\n\tfree %s of %s, largest hole in the cache %s", known(e.Free), known(e.Total), known(e.LargestInactive))
	fmt.Fprintf(&b, "\n\treserved %s, of which inactive %s; untracked %s", known(e.Reserved), known(e.Inactive), known(e.Untracked))
	for i, site := range e.Sites {
		if i == 0 {
			b.WriteString("\n\theld by:")
		}
		fmt.Fprintf(&b, "\n\t\t%v", site)
	}
	fmt.Fprintf(&b, "\n\tadvice: %s", e.advice())
	if e.Dump != "" {
		fmt.Fprintf(&b, "\n\tdump: %s", e.Dump)
	}
	if e.DumpErr != nil {
		fmt.Fprintf(&b, "\n\tno dump: %v", e.DumpErr)
	}
	return b.String()
}

// Unwrap returns the device's error.
func (e *OutOfMemoryError) Unwrap() error { return e.OutOfMemoryError }

func known(n alloc.Bytes) string {
	if n < 0 {
		return "unknown"
	}
	return n.String()
}

// outOfMemory returns the error of an allocation that failed for lack of memory,
// and tells the history.
func (t *MemTracker) outOfMemory(err error, stack callstack.ID, x tensor) error {
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	section := t.sections.at(here).pathID()
	e := &OutOfMemoryError{Kind: x.kind, DType: x.dtype, Shape: x.shape.Clone(), Section: t.sections.paths.names[section]}
	if !t.ledger.closed {
		t.history.add(event{since: now, action: OutOfMemory, allocated: x.each, stack: stack, section: uint16(section)})
	}
	t.mu.Unlock()
	if !errors.As(err, &e.OutOfMemoryError) {
		e.OutOfMemoryError = t.unknownOutOfMemory(x.each, err)
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
		Device:    fmt.Sprintf("%s %d", t.device.Name(), t.device.Ordinal()),
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
	e.Advice = e.advise(t.failing.untrackedAtStart)
}

// largestLines returns the lines of code that hold most. It costs some
// nanoseconds for each cell, and names nothing that it does not return.
func (t *MemTracker) largestLines(n int) []SiteTally {
	t.mu.Lock()
	cells := t.ledger.cells.View()
	t.mu.Unlock()
	var held []Tally // by line
	cells.Read(t.mu, func(_ slab.ID, records *[slab.ChunkLen]cell) {
		for i := range records {
			c := &records[i]
			if c.live == 0 {
				continue
			}
			for int(c.line) >= len(held) {
				held = append(held, Tally{})
			}
			held[c.line].add(c.live, alloc.Bytes(c.live)*c.each)
		}
	})
	var lines []lineID
	for line, sum := range held {
		if sum.Count != 0 {
			lines = append(lines, lineID(line))
		}
	}
	slices.SortFunc(lines, func(x, y lineID) int { return cmp.Compare(held[y].Bytes, held[x].Bytes) })
	lines = lines[:min(n, len(lines))]
	largest := make([]SiteTally, len(lines))
	for i, line := range lines {
		largest[i] = SiteTally{t.stacks.frame(line), held[line]}
	}
	return largest
}

// dumpOutOfMemory writes the dump of one of the first failures: they tell most,
// and a program that fails over and over must not write forever.
func (t *MemTracker) dumpOutOfMemory(e *OutOfMemoryError) (string, error) {
	if t.failing.dumps.Add(1) > int64(t.dumps.max) {
		return "", fmt.Errorf("%d were written already: see Config.MaxDumps", t.dumps.max)
	}
	return t.DumpFile(t.failing.dir, e.Error())
}
