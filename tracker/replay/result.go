package replay

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func unknownNote(setting string) string {
	return fmt.Sprintf("the recorded setting %s is not known here: replays are without it", text.Line(setting))
}

// Result is what a replay came to. Its String and its JSON also say where the history began and what it lacks.
type Result struct {
	Allocator string      // one of Allocators
	Memory    alloc.Bytes // the limit; 0 means none. From Smallest: the least memory on which it fits; 0 if it never does
	Events    int64       // of the history
	// Fits says that every request got its memory, those included that failed when they
	// were recorded. If one did not, the replay ends there, and its levels are those up to
	// then; String says which one it was, and what there was.
	Fits bool
	Levels
	Recorded Levels // what the dump says

	oom       *failure // nil if it fits
	device    string   // of the dump
	ordinal   int
	replays   int // that a search took; 0 without one
	start     start
	gap       *gap       // nil if the history is complete
	unknown   []string   // recorded settings that are left out
	agreement *agreement // nil if there is nothing to compare with
}

// start is the state before the first event.
type start struct {
	Dropped   uint64      `json:"dropped_events"` // that the dump does not have
	Buffers   int         `json:"buffers"`
	Requested alloc.Bytes `json:"requested_bytes"`
	Reserved  alloc.Bytes `json:"reserved_bytes"` // as recorded
	Layout    string      `json:"layout"`         // in the replay: "empty", "as recorded" or "packed"
	// EarlierPeak is the most bytes requested before the first event, if that was more than any
	// later; 0 if it was not. It is not replayed.
	EarlierPeak alloc.Bytes `json:"earlier_peak_requested_bytes,omitempty"`
}

// failure is a request that did not fit, and what there was then.
type failure struct {
	Event           uint64      `json:"event"` // its number in the history
	Requested       alloc.Bytes `json:"requested_bytes"`
	Free            alloc.Bytes `json:"free_bytes"`             // of the device
	LargestInactive alloc.Bytes `json:"largest_inactive_bytes"` // in the cache, for the request's stream
	CallSite        mem.Frame   `json:"call_site"`              // the line that asked for it
	Reserved        alloc.Bytes `json:"reserved_bytes"`
	Allocated       alloc.Bytes `json:"allocated_bytes"` // in blocks
	Inactive        alloc.Bytes `json:"inactive_bytes"`  // in pieces too small
	Others          alloc.Bytes `json:"others_bytes"`    // held by registered buffers
	// Beginning says that what was live before the first event does not fit. Requested is
	// the memory that it needs, Free all that there is.
	Beginning bool `json:"beginning,omitempty"`
}

// gap is what an incomplete history lacks. Buffers whose allocation or free is missing count for as long
// as they can have lived, so that the replay shows the most that the program can have needed. The
// two peaks are the least that it needed: they leave these buffers out.
type gap struct {
	Event   uint64      `json:"event"` // the first at which something was missing
	Reason  string      `json:"reason"`
	Buffers int64       `json:"buffers"`
	Bytes   alloc.Bytes `json:"bytes"`
	Events  int64       `json:"events,omitempty"` // that are missing at the end

	LeastRequested alloc.Bytes `json:"least_peak_requested_bytes"`
	LeastAllocated alloc.Bytes `json:"least_peak_allocated_bytes"`
}

// MarshalJSON writes all that is known, as docs/replay.md describes it.
func (r Result) MarshalJSON() ([]byte, error) {
	smallest := alloc.Bytes(0)
	if r.replays > 0 {
		smallest = r.Memory
	}
	return json.Marshal(struct {
		Device    string      `json:"device"`
		Ordinal   int         `json:"ordinal"`
		Allocator string      `json:"allocator"`
		Memory    alloc.Bytes `json:"memory_bytes,omitempty"`
		Events    int64       `json:"events"`
		Fits      bool        `json:"fits"`
		levelsJSON
		Smallest alloc.Bytes `json:"smallest_memory_bytes,omitempty"`
		Replays  int         `json:"replays,omitempty"`
		OOM      *failure    `json:"oom,omitempty"`
		Start    start       `json:"start"`
		Recorded levelsJSON  `json:"recorded"`
		Agrees   *agreement  `json:"agreement"`
		Unknown  []string    `json:"unknown_settings,omitempty"`
		Gap      *gap        `json:"gap,omitempty"`
	}{r.device, r.ordinal, r.Allocator, r.Memory, r.Events, r.Fits, r.Levels.json(), smallest, r.replays, r.oom, r.start, r.Recorded.json(), r.agreement, r.unknown, r.gap})
}

// String describes the result in a few lines.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.verdict())
	if r.oom != nil {
		fmt.Fprintf(&b, "%v\n", r.oom)
	}
	fmt.Fprintf(&b, "replayed: peak %v requested, %v in blocks, %v reserved; driver calls: %d allocations, %d frees; retries: %d\n",
		r.PeakRequested, r.PeakAllocated, r.PeakReserved, r.DriverAllocs, r.DriverFrees, r.Retries)
	fmt.Fprintf(&b, "recorded: peak %v requested, %v in blocks, %v reserved; driver calls: %d allocations, %d frees; retries: %s; out of memory: %d\n",
		r.Recorded.PeakRequested, r.Recorded.PeakAllocated, r.Recorded.PeakReserved, r.Recorded.DriverAllocs, r.Recorded.DriverFrees, r.Recorded.retries(), r.Recorded.OOMs)
	for _, note := range r.Notes() {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

// retries prints the number of retries.
func (l *Levels) retries() string {
	if l.Retries < 0 {
		return "unknown"
	}
	return strconv.FormatInt(l.Retries, 10)
}

// verdict is the first line.
func (r Result) verdict() string {
	on := "without a limit"
	if r.Memory > 0 {
		on = fmt.Sprintf("on %v", r.Memory)
	}
	fits := "fits"
	if !r.Fits {
		fits = "does not fit"
	}
	return fmt.Sprintf("%s: %d events, allocator %s, %s", fits, r.Events, r.Allocator, on)
}

// Notes returns what to keep in mind about the result: how far replays agree with the recording,
// and whether the history begins in the middle or has a gap.
func (r Result) Notes() (notes []string) {
	if r.agreement != nil {
		notes = append(notes, r.agreement.String())
	}
	for _, setting := range r.unknown {
		notes = append(notes, unknownNote(setting))
	}
	if s := r.start; s.Buffers > 0 || s.Dropped > 0 {
		notes = append(notes, fmt.Sprintf("the history begins with %d buffers live, %v, and %v reserved: %s",
			s.Buffers, s.Requested, s.Reserved, map[string]string{
				layoutEmpty: "nothing", layoutRecorded: "replayed from the recorded segments", layoutPacked: "replayed with these buffers packed, without older holes",
			}[s.Layout]))
	}
	if r.start.EarlierPeak > 0 {
		notes = append(notes, fmt.Sprintf("before the history, %v were requested at a time: more than in it, and not replayed", r.start.EarlierPeak))
	}
	if g := r.gap; g != nil {
		notes = append(notes, fmt.Sprintf("the history is torn, first at event %d (%s): %d buffers, %v, were taken to live as long as they can have; at least %v were requested, %v in blocks",
			g.Event, g.Reason, g.Buffers, g.Bytes, g.LeastRequested, g.LeastAllocated))
		if g.Events > 0 {
			notes = append(notes, fmt.Sprintf("its latest %d events are missing", g.Events))
		}
	}
	return notes
}

// String describes the request, and what was free but could not serve it.
func (o *failure) String() string {
	if o.Beginning {
		return fmt.Sprintf("out of memory at the beginning: what was live before the first event needs %v, and %v is available", o.Requested, o.Free)
	}
	return fmt.Sprintf("out of memory at event %d: %v requested at %v\nthe device has %v free; %v are reserved, %v of it allocated and %v inactive, in blocks of %v at most",
		o.Event, o.Requested, text.Line(o.CallSite.String()), o.Free, o.Reserved, o.Allocated, o.Inactive, o.LargestInactive)
}

// Levels are the peaks of a run, and what it asked of the driver.
type Levels struct {
	PeakRequested alloc.Bytes `json:"peak_requested_bytes"` // by the program
	PeakAllocated alloc.Bytes `json:"peak_allocated_bytes"` // in blocks, after rounding
	PeakReserved  alloc.Bytes `json:"peak_reserved_bytes"`  // in segments
	DriverAllocs  int64       `json:"driver_allocs"`        // of segments, or parts that were mapped
	DriverFrees   int64       `json:"driver_frees"`
	Retries       int64       `json:"retries"` // requests for which the cache had to be emptied; -1 if a recording does not tell
	OOMs          int64       `json:"ooms"`    // requests that failed

	requested, allocated, reserved alloc.Bytes
}

// levelsJSON is the JSON form of Levels.
type levelsJSON struct {
	plainLevels
	Retries jsonstream.Amount `json:"retries"`
}

type plainLevels Levels

func (l Levels) json() levelsJSON { return levelsJSON{plainLevels(l), jsonstream.Amount(l.Retries)} }

// MarshalJSON writes null for unknown values.
func (l Levels) MarshalJSON() ([]byte, error) { return json.Marshal(l.json()) }

// at sets the levels.
func (l *Levels) at(reserved, requested, allocated alloc.Bytes) {
	l.reserved, l.requested, l.allocated = reserved, requested, allocated
}

// add counts a buffer in, or out with negative sizes. It leaves the peaks alone: an event may count several
// buffers, and only the level after it is one that there was. The blocks of foreign buffers are not the allocator's.
func (l *Levels) add(requested, allocated alloc.Bytes, foreign bool) {
	l.requested += requested
	if !foreign {
		l.allocated += allocated
	}
}

func (l *Levels) reserve(change alloc.Bytes) { l.reserved += change }

// peak raises the peaks to the present levels.
func (l *Levels) peak() {
	l.PeakRequested = max(l.PeakRequested, l.requested)
	l.PeakAllocated = max(l.PeakAllocated, l.allocated)
	l.PeakReserved = max(l.PeakReserved, l.reserved)
}

// agreement says how far a replay with the recorded settings does what was recorded: the same
// driver calls for the same requests, and the same addresses. Replays with other settings can be
// trusted as far as this one agrees.
type agreement struct {
	Calls             int64 `json:"driver_calls"` // that the replay makes as recorded
	RecordedCalls     int64 `json:"recorded_driver_calls"`
	OtherCalls        int64 `json:"other_driver_calls"` // calls of the replay that the recording does not have
	Addresses         int64 `json:"addresses"`
	RecordedAddresses int64 `json:"recorded_addresses"`

	PeakReserved         alloc.Bytes `json:"peak_reserved_bytes"`
	RecordedPeakReserved alloc.Bytes `json:"recorded_peak_reserved_bytes"`
}

// calls counts driver calls by how much each changes the reserved memory.
type calls map[alloc.Bytes]int64

// comparison compares what a machine does with the recording.
type comparison struct {
	agreement
	recorded, made calls // since the latest request
}

func newComparison() *comparison { return &comparison{recorded: make(calls), made: make(calls)} }

// served counts a request that got memory, at the recorded address or elsewhere.
func (c *comparison) served(same bool) {
	c.RecordedAddresses++
	if same {
		c.Addresses++
	}
	c.compare()
}

// compare compares the driver calls since the latest request. Their order does not matter.
func (c *comparison) compare() {
	for change, n := range c.recorded {
		c.RecordedCalls += n
		c.Calls += min(n, c.made[change])
	}
	for change, n := range c.made {
		c.OtherCalls += max(0, n-c.recorded[change])
	}
	clear(c.recorded)
	clear(c.made)
}

// complete reports whether the replay made all recorded calls at their addresses, and no others.
func (a *agreement) complete() bool {
	return a.Calls == a.RecordedCalls && a.OtherCalls == 0 && a.Addresses == a.RecordedAddresses
}

// String says how far the replay agrees and, if it does not agree everywhere, how far other replays
// can be trusted.
func (a *agreement) String() string {
	text := fmt.Sprintf("with the recorded settings, a replay makes %d of %d driver calls", a.Calls, a.RecordedCalls)
	if a.OtherCalls > 0 {
		text += fmt.Sprintf(" (and %d others)", a.OtherCalls)
	}
	text += fmt.Sprintf(" and has %d of %d addresses as recorded", a.Addresses, a.RecordedAddresses)
	off := a.PeakReserved - a.RecordedPeakReserved
	switch {
	case a.complete():
		return text
	case off == 0:
		return text + "; its peak of reserved memory is the recorded one"
	case off < 0:
		return text + fmt.Sprintf("; it reserves %v less than recorded: smaller differences between settings mean nothing", -off)
	}
	return text + fmt.Sprintf("; it reserves %v more than recorded: smaller differences between settings mean nothing", off)
}
