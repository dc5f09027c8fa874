package tracker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// OutOfMemoryError is returned by Alloc when the device has no memory, with the figures to act on.
// It unwraps to the device's *alloc.OutOfMemoryError.
type OutOfMemoryError struct {
	snapshot.OOM // what was asked for, what there was, who holds it, and what would help
	// Dump is the path of the dump that was written, if Config.OOMDir asks for one. If none could be
	// written, it is empty and Error says why.
	Dump    string `json:"dump,omitempty"`
	dumpErr error
	device  *alloc.OutOfMemoryError
	// stuck are the lines of code whose buffers block the most inactive memory, because they use
	// only a part of their segments. It is set only if the inactive memory is in pieces and the
	// lines are cheap to find; otherwise explain.Snapshot finds them.
	stuck []explain.Line
}

// MarshalJSON writes the figures, null where they are unknown, and the path of the dump.
func (e OutOfMemoryError) MarshalJSON() ([]byte, error) {
	figures, err := json.Marshal(e.OOM)
	if err != nil || e.Dump == "" {
		return figures, err
	}
	dump, err := json.Marshal(e.Dump)
	return slices.Concat(figures[:len(figures)-1], []byte(`,"dump":`), dump, []byte("}")), err
}

// Error returns the whole explanation, on several lines.
func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	device := "a device" // of an error that a program's own test makes
	if e.device != nil {
		device = text.Line(e.device.Device)
	}
	fmt.Fprintf(&b, "alloc %v %v %v: %v on %s: %v requested", e.Kind, e.Shape, e.DType, alloc.ErrOutOfMemory, device, e.Requested)
	if e.Section != "" {
		fmt.Fprintf(&b, " in section %q", e.Section)
	}
	fmt.Fprintf(&b, "\n\tfree %s of %s, largest inactive block %s", known(e.Free), known(e.Total), known(e.LargestInactive))
	fmt.Fprintf(&b, "\n\treserved %s, of which inactive %s; untracked %s", known(e.Reserved), known(e.Inactive), known(e.Untracked))
	for i, site := range e.CallSites {
		if i == 0 {
			b.WriteString("\n\theld by:")
		}
		fmt.Fprintf(&b, "\n\t\t%v", site)
	}
	for i, line := range e.stuck {
		if i == 0 {
			b.WriteString("\n\tstuck in the cache:")
		}
		fmt.Fprintf(&b, "\n\t\t%v", line)
	}
	fmt.Fprintf(&b, "\n\tadvice: %s", e.Advice)
	if e.Dump != "" {
		fmt.Fprintf(&b, "\n\tdump: %s", e.Dump)
	}
	if e.dumpErr != nil {
		fmt.Fprintf(&b, "\n\tno dump: %v", e.dumpErr)
	}
	return b.String()
}

// Unwrap returns the device's error.
func (e *OutOfMemoryError) Unwrap() error {
	if e.device == nil {
		return alloc.ErrOutOfMemory
	}
	return e.device
}

func known(n alloc.Bytes) string {
	if n < 0 {
		return "unknown"
	}
	return n.String()
}

// failing is what a tracker needs for allocations that fail.
type failing struct {
	dir              string       // directory of dumps; "" means no dumps
	dumps            atomic.Int64 // written for lack of memory, and left out since they were too many
	others           func() (alloc.Bytes, error)
	untrackedAtStart alloc.Bytes
}

const (
	maxOOMSites = 10
	maxStuck    = 3
)

// outOfMemory returns the error of an allocation that failed for lack of memory,
// and tells the history.
func (t *MemTracker) outOfMemory(err error, stack tables.StackID, on alloc.Stream, x tables.Tensor) error {
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	section := t.sections.at(here).pathID()
	own := x.Clone()
	e := &OutOfMemoryError{OOM: snapshot.OOM{
		Group: snapshot.Group{Kind: own.Kind, DType: own.DType, Shape: own.Shape}, Section: t.sections.paths.names[section],
	}}
	if !t.ledger.Closed {
		t.history.Add(tables.EventEntry{Since: now, Action: mem.OutOfMemory, Allocated: x.Each, Stack: stack, Section: uint16(section), Stream: t.ledger.Streams.At(on)})
	}
	t.mu.Unlock()
	if !errors.As(err, &e.device) {
		e.device = t.unknownOutOfMemory(x.Each, err)
	}
	t.explain(e)
	if t.failing.dir != "" {
		e.Dump, e.dumpErr = t.dumpOutOfMemory(e)
	}
	return e
}

// unknownOutOfMemory makes the error of a device that says only that it is full.
func (t *MemTracker) unknownOutOfMemory(requested alloc.Bytes, err error) *alloc.OutOfMemoryError {
	return &alloc.OutOfMemoryError{
		Device:    t.name,
		Requested: requested, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
}

// explain adds to an error all that the tracker knows.
func (t *MemTracker) explain(e *OutOfMemoryError) {
	levels := t.levels()
	e.Requested, e.Free, e.Total = e.device.Requested, e.device.Free, e.device.Total
	e.Reserved, e.LargestInactive = e.device.Reserved, e.device.LargestInactive
	e.Inactive, e.Others = -1, -1
	if t.cache != nil {
		e.Inactive = t.cache.Stats().Inactive.Bytes.Current
		if e.Reserved < 0 { // the error is not the cache's own
			e.Reserved = levels.Reserved
		}
	}
	if t.failing.others != nil {
		if others, err := t.failing.others(); err == nil {
			e.Others = others
		}
	}
	e.Untracked = levels.Untracked()
	e.Elsewhere = t.cachedElsewhere()
	e.CallSites = t.largestLines(maxOOMSites)
	why := causeOf(&e.OOM, t.failing.untrackedAtStart)
	e.Advice = why.advice(&e.OOM)
	if why == fragmented {
		e.stuck = t.stuck(maxStuck)
	}
}

// cachedElsewhere returns what other trackers' caches could give back to this
// tracker's device.
func (t *MemTracker) cachedElsewhere() (bytes alloc.Bytes) {
	for _, other := range t.others() {
		if other.cache == nil || other.cache == t.cache || other.onHost != t.onHost || !sameDevice(other.device, t.device) {
			continue
		}
		bytes += other.cache.Stats().Releasable
	}
	return bytes
}

// largestLines returns the lines of code that hold most. It costs some nanoseconds for each cell,
// and finds names only for the lines that it returns.
func (t *MemTracker) largestLines(n int) []mem.CallSiteTally {
	t.mu.Lock()
	cells := t.ledger.Buckets.View()
	t.mu.Unlock()
	var held []mem.Tally // by line
	cells.Read(t.mu, func(_ slab.ID, records []ledger.Bucket[*MemTracker]) {
		for i := range records {
			c := &records[i]
			if c.Live == 0 || c.Memory.OnHost() != t.onHost {
				continue
			}
			for int(c.Line) >= len(held) {
				held = append(held, mem.Tally{})
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
	largest := make([]mem.CallSiteTally, len(lines))
	for i, line := range lines {
		largest[i] = mem.CallSiteTally{Frame: t.stacks.Frame(line), Tally: held[line]}
	}
	return largest
}

// maxCheap is how many buffers, call sites and blocks a failed allocation looks through to
// explain itself: a millisecond or two of work.
const maxCheap = 10_000

// stuck returns the lines that keep the most inactive memory in use, or nil if finding them would
// take long.
func (t *MemTracker) stuck(n int) []explain.Line {
	if t.cache == nil || t.closed.Load() {
		return nil
	}
	t.mu.Lock()
	stats := t.locked.Stats()
	cheap := t.ledger.Buckets.Len() <= maxCheap && stats.Allocated.Count.Current+stats.Inactive.Count.Current <= maxCheap
	t.mu.Unlock()
	if !cheap {
		return nil
	}
	lines := explain.Snapshot(t.Snapshot()).Lines
	return lines[:min(n, len(lines))]
}

// dumpOutOfMemory writes the dump of one of the first failures: they tell most,
// and a program that fails over and over must not write forever.
func (t *MemTracker) dumpOutOfMemory(e *OutOfMemoryError) (string, error) {
	if t.failing.dumps.Add(1) > int64(t.dumps.max) {
		return "", fmt.Errorf("%d were written already: see Config.MaxDumps", t.dumps.max)
	}
	d, err := t.newDump(e.Error())
	if err != nil {
		return "", err
	}
	d.OOM = &e.OOM
	return t.dumps.save(t.failing.dir, d)
}

// cause is why an allocation failed, as well as the figures show it.
type cause uint8

const (
	trulyFull       cause = iota // the program itself holds the memory
	fragmented                   // enough memory is free, but in pieces
	cachedElsewhere              // enough is inactive, but where this request cannot use it
	otherProcess                 // memory is in use that the ledger does not explain
)

// causeOf goes by the first of these that would have helped, cheapest first. By
// then the cache has given all whole segments back, and asked again.
func causeOf(e *snapshot.OOM, untrackedAtStart alloc.Bytes) cause {
	free := max(0, e.Free)
	short := e.Requested - free
	switch {
	case e.Total >= 0 && e.Requested > e.Total:
		return trulyFull
	case e.Free >= e.Requested:
		return fragmented
	case e.Elsewhere >= short, e.LargestInactive >= e.Requested:
		return cachedElsewhere
	case e.Inactive >= short:
		return fragmented
	case e.Others >= short:
		return otherProcess
	case e.Others < 0 && e.Untracked >= 0 && (e.Untracked-untrackedAtStart >= short || e.Total > 0 && e.Untracked > e.Total/2):
		return otherProcess
	}
	return trulyFull
}

// advice is the sentence that goes with a cause.
func (c cause) advice(e *snapshot.OOM) string {
	switch c {
	case fragmented:
		if e.Free >= e.Requested {
			return fmt.Sprintf("fragmented: the driver has %v free and refused, so not in one piece, or not as much as a segment of the cache: "+
				"free large buffers, or allocate them first", e.Free)
		}
		return fmt.Sprintf("fragmented: %v are inactive, but in pieces of %v at most, between buffers that are live: "+
			"free those that share their segments, allocate what lives long first, or reuse buffers of one size", e.Inactive, e.LargestInactive)
	case cachedElsewhere:
		if e.LargestInactive >= e.Requested {
			return fmt.Sprintf("inactive elsewhere: a block of %v lies in the pool of the other sizes (up to 1 MiB, or above): "+
				"free the buffers that share its segment, and it goes back to the driver", e.LargestInactive)
		}
		return fmt.Sprintf("inactive elsewhere: other trackers of this process have %v inactive on this device: call their ClearCache", e.Elsewhere)
	case otherProcess:
		held := max(e.Others, e.Untracked)
		if e.Others >= 0 {
			held = e.Others
		}
		return fmt.Sprintf("other process: %v of the device are in use outside of this tracker: "+
			"see nvidia-smi for whose they are, end those, or take another device", held)
	}
	if e.Total >= 0 && e.Requested > e.Total {
		return fmt.Sprintf("truly full: no device of %v can hold it: make the batch smaller, or split it", e.Total)
	}
	if reach := e.Free + e.Reserved; e.Free >= 0 && e.Reserved >= 0 && e.Requested > reach {
		return fmt.Sprintf("truly full: with all buffers of this program freed there would be %v: make the batch smaller, split it, or take a larger device", reach)
	}
	return "truly full: the program's own buffers take the memory: " +
		"free what the first lines above hold, make the batch smaller, or take a larger device"
}
