package tracker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// OutOfMemoryError is returned by Alloc when the device has no memory, with the values to act on.
// It unwraps to the device's *alloc.OutOfMemoryError.
type OutOfMemoryError struct {
	snapshot.OOM // the request, the free memory, the lines that hold the rest, and what would help
	// Dump is the path of the dump that was written, if Config.OOMDir asks for one. If none could be
	// written, it is empty and Error says why.
	Dump    string `json:"dump,omitempty"`
	dumpErr error
	device  *alloc.OutOfMemoryError
	// pinning are the lines of code whose buffers pin the most inactive memory, because they use
	// only a part of their segments. It is set only if the inactive memory is in pieces and the
	// lines are cheap to find; otherwise explain.Snapshot finds them.
	pinning []explain.Line
}

// MarshalJSON writes the values, null where they are unknown, and the path of the dump.
func (e OutOfMemoryError) MarshalJSON() ([]byte, error) {
	values, err := json.Marshal(e.OOM)
	if err != nil || e.Dump == "" {
		return values, err
	}
	dump, err := json.Marshal(e.Dump)
	return slices.Concat(values[:len(values)-1], []byte(`,"dump":`), dump, []byte("}")), err
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
	for i, line := range e.pinning {
		if i == 0 {
			b.WriteString("\n\tpinned in the cache:")
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

const (
	maxOOMSites = 10
	maxPinning  = 3
)

// newOutOfMemory returns the error of an allocation that failed for lack of memory, and adds the failure to the history.
func newOutOfMemory(t *MemTracker, err error, stack tables.StackID, on alloc.Stream, x tables.Tensor) error {
	here, now := t.sections.goroutine(), t.clock.now()
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
		e.device = unknownOutOfMemory(t.name, x.Each, err)
	}
	explainOutOfMemory(t, e)
	if t.oom.dir != "" {
		e.Dump, e.dumpErr = dumpOutOfMemory(t, e)
	}
	return e
}

// unknownOutOfMemory makes the error of a device that says only that it is full.
func unknownOutOfMemory(device string, requested alloc.Bytes, err error) *alloc.OutOfMemoryError {
	return &alloc.OutOfMemoryError{
		Device:    device,
		Requested: requested, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
}

// explainOutOfMemory adds to an error all that the tracker knows.
func explainOutOfMemory(t *MemTracker, e *OutOfMemoryError) {
	levels := currentLevels(t)
	e.Requested, e.Free, e.Total = e.device.Requested, e.device.Free, e.device.Total
	e.Reserved, e.LargestInactive = e.device.Reserved, e.device.LargestInactive
	e.Inactive, e.Others = -1, -1
	if t.cache != nil {
		e.Inactive = t.cache.Stats().Inactive.Bytes.Current
		if e.Reserved < 0 { // the error is not the cache's own
			e.Reserved = levels.Reserved
		}
	}
	if t.oom.others != nil {
		if others, err := t.oom.others(); err == nil {
			e.Others = others
		}
	}
	e.Untracked = levels.Untracked()
	e.Elsewhere = inactiveElsewhere(t)
	e.CallSites = largestLines(t, maxOOMSites)
	why := causeOf(&e.OOM, t.oom.untrackedAtStart)
	e.Advice = why.advice(&e.OOM)
	if why == fragmented {
		e.pinning = pinningLines(t, maxPinning)
	}
}

// inactiveElsewhere returns what the caches of other trackers could give back to the device of t.
func inactiveElsewhere(t *MemTracker) (bytes alloc.Bytes) {
	for _, other := range openTrackers.except(t) {
		if other.cache == nil || other.cache == t.cache || other.onHost != t.onHost || !sameDevice(other.device, t.device) {
			continue
		}
		bytes += other.cache.Stats().Reclaimable
	}
	return bytes
}

// largestLines returns the lines of code that hold most. It costs some nanoseconds for each bucket,
// and finds names only for the lines that it returns.
func largestLines(t *MemTracker, n int) []mem.CallSiteTally {
	t.mu.Lock()
	view := t.ledger.Buckets.View()
	t.mu.Unlock()
	var held []mem.Tally // by line
	view.Read(t.mu, func(_ slab.ID, buckets []ledger.Bucket[*MemTracker]) {
		for i := range buckets {
			b := &buckets[i]
			if b.Live == 0 || b.Memory.OnHost() != t.onHost {
				continue
			}
			for int(b.Line) >= len(held) {
				held = append(held, mem.Tally{})
			}
			count(&held[b.Line], b.Live, alloc.Bytes(b.Live)*b.Each)
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

// maxCheap is how many buckets and blocks a failed allocation searches to explain itself: a millisecond or two of work.
const maxCheap = 10_000

// pinningLines returns the lines whose buffers pin the most inactive memory, or nil if finding them would take long.
func pinningLines(t *MemTracker, n int) []explain.Line {
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
	lines := explain.Snapshot(takeSnapshot(t, true)).Lines
	return lines[:min(n, len(lines))]
}

// dumpOutOfMemory writes the dump of one of the first failures. They are the most useful, and a program that fails over and over must
// not write forever.
func dumpOutOfMemory(t *MemTracker, e *OutOfMemoryError) (string, error) {
	if t.oom.dumps.Add(1) > int64(t.dumps.max) {
		return "", fmt.Errorf("%d were written already: see Config.MaxDumps", t.dumps.max)
	}
	d, err := newDump(t, e.Error())
	if err != nil {
		return "", err
	}
	d.OOM = &e.OOM
	return t.dumps.write(t.oom.dir, d)
}

// cause is why an allocation failed, as well as the values show it.
type cause uint8

const (
	trulyFull       cause = iota // the program itself holds the memory
	fragmented                   // enough memory is free, but in pieces
	cachedElsewhere              // enough is inactive, but where this request cannot use it
	otherProcess                 // memory is in use that the ledger does not explain
	tooLarge                     // the device could never hold it
	noShortage                   // the driver has it, and refuses
)

// causeOf goes by the first of these that would have helped, cheapest first. By
// then the cache has released all inactive segments, and asked again.
func causeOf(e *snapshot.OOM, untrackedAtStart alloc.Bytes) cause {
	free := max(0, e.Free)
	short := e.Requested - free
	switch {
	case e.Total >= 0 && e.Requested > e.Total:
		return tooLarge
	case e.Free >= e.Requested && !(verdict.Values{Requested: e.Requested, Free: e.Free, Capacity: e.Total}).Nearly():
		return noShortage
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
	case noShortage:
		return fmt.Sprintf("no shortage: the driver has %v free and refused, so not in one piece, or not as much as a segment of the cache: "+
			"free large buffers, or allocate them first", e.Free)
	case tooLarge:
		return fmt.Sprintf("larger than the device: no device of %v can hold it: make the batch smaller, or split it", e.Total)
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
	if reach := e.Free + e.Reserved; e.Free >= 0 && e.Reserved >= 0 && e.Requested > reach {
		return fmt.Sprintf("truly full: with all buffers of this program freed there would be %v: make the batch smaller, split it, or take a larger device", reach)
	}
	return "truly full: the program's own buffers take the memory: " +
		"free what the first lines above hold, make the batch smaller, or take a larger device"
}
