package tracker

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// OutOfMemoryError is the error of an Alloc for which the device has no memory, with the
// figures to act on. It unwraps to the *alloc.OutOfMemoryError. An unknown amount is -1.
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

	Sites []snapshot.SiteTally // the lines of code that hold most, up to ten
	// Stuck are the lines of code whose buffers keep most of Inactive in segments of which they
	// use a part, up to three, if Advice is Fragmented. There are none if that is
	// not cheap to find; Explain tells it then.
	Stuck  []snapshot.PinLine
	Advice Advice
	// Dump is the path of the dump that was written, if Config.OOMDir asks for
	// one; DumpErr says why there is none.
	Dump    string
	DumpErr error
}

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
	fmt.Fprintf(&b, "alloc %v %v %v: %v on %s: %v requested", e.Kind, e.Shape, e.DType, alloc.ErrOutOfMemory, text.Line(e.Device), e.Requested)
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
	for i, line := range e.Stuck {
		if i == 0 {
			b.WriteString("\n\tstuck in the cache:")
		}
		fmt.Fprintf(&b, "\n\t\t%v", line)
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

// Advice names the cause of a failed allocation, as far as the figures show it.
type Advice uint8

// The kinds of advice.
const (
	// TrulyFull: the program itself holds the memory.
	TrulyFull Advice = iota + 1
	// Fragmented: there is enough memory, in pieces.
	Fragmented
	// CachedElsewhere: enough of it is cached where this request cannot take it.
	CachedElsewhere
	// OtherProcess: memory is held that the ledger does not explain.
	OtherProcess
)

var adviceNames = [...]string{
	TrulyFull: "truly full", Fragmented: "fragmented", CachedElsewhere: "cached elsewhere", OtherProcess: "other process",
}

// String returns the kind's name.
func (a Advice) String() string {
	if int(a) < len(adviceNames) && a > 0 {
		return adviceNames[a]
	}
	return fmt.Sprintf("Advice(%d)", uint8(a))
}

// advise follows the first of these that would have helped, cheapest first. By
// then the cache has given all whole segments back, and asked again.
func (e *OutOfMemoryError) advise(untrackedAtStart alloc.Bytes) Advice {
	free := max(0, e.Free)
	short := e.Requested - free
	switch {
	case e.Total >= 0 && e.Requested > e.Total:
		return TrulyFull
	case e.Free >= e.Requested:
		return Fragmented
	case e.Elsewhere >= short, e.LargestInactive >= e.Requested:
		return CachedElsewhere
	case e.Inactive >= short:
		return Fragmented
	case e.Others >= short:
		return OtherProcess
	case e.Others < 0 && e.Untracked >= 0 && (e.Untracked-untrackedAtStart >= short || e.Total > 0 && e.Untracked > e.Total/2):
		return OtherProcess
	}
	return TrulyFull
}

// advice is the line that goes with Advice.
func (e *OutOfMemoryError) advice() string {
	switch e.Advice {
	case Fragmented:
		if e.Free >= e.Requested {
			return fmt.Sprintf("fragmented: the driver has %v free and refused, so not in one piece, or not as much as a segment of the cache: "+
				"free large buffers, or allocate them first", e.Free)
		}
		return fmt.Sprintf("fragmented: %v are cached, but in pieces of %v at most, between buffers that are live: "+
			"free those that share their segments, allocate what lives long first, or reuse buffers of one size", e.Inactive, e.LargestInactive)
	case CachedElsewhere:
		if e.LargestInactive >= e.Requested {
			return fmt.Sprintf("cached elsewhere: a hole of %v lies in the pool of the other sizes (up to 1 MiB, or above): "+
				"free the buffers that share its segment, and it goes back to the driver", e.LargestInactive)
		}
		return fmt.Sprintf("cached elsewhere: other trackers of this process have %v cached on this device: call their ClearCache", e.Elsewhere)
	case OtherProcess:
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
