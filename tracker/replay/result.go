package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Recorded returns the Config of the allocator that made a dump, without a limit of memory. It is
// "driver" if the dump has neither a cache nor segments; damaged segments count. Settings that
// cache.ParseConfig refuses, such as those of a later PyTorch, are left out, and the notes of a
// Result name them.
func Recorded(r *snapshot.Dump) Config {
	conf, _ := recordedSettings(r)
	broken := tables.Of(&r.Snapshot.Tables).LeftOut.Broken > 0
	if r.Snapshot.Cache == nil && len(r.Snapshot.Segments) == 0 && !broken && !walk.BeginningOf(r).Segments {
		return Config{Allocator: driver}
	}
	cfg := Config{Allocator: caching, Conf: conf}
	for _, s := range r.Snapshot.Segments {
		conf.ExpandableSegments = conf.ExpandableSegments || s.Expandable
	}
	if conf.ExpandableSegments {
		cfg.Allocator = expandable
	}
	return cfg
}

// recordedSettings returns the settings of the recorded allocator, and those that are not known.
func recordedSettings(r *snapshot.Dump) (conf cache.Config, unknown []string) {
	recorded := cmp.Or(r.Snapshot.Settings[settingsKey], r.Snapshot.Settings[laterSettingsKey])
	if conf, err := cache.ParseConfig(recorded); err == nil {
		return conf, nil
	}
	good := ""
	for _, setting := range settingsIn(recorded) {
		with := setting
		if good != "" {
			with = good + "," + setting
		}
		if parsed, err := cache.ParseConfig(with); err == nil {
			good, conf = with, parsed
		} else {
			unknown = append(unknown, setting)
		}
	}
	return conf, unknown
}

// unknownSettings are the recorded ones that are left out.
func (p *program) unknownSettings() []string {
	_, unknown := recordedSettings(p.dump)
	return unknown
}

func unknownNote(setting string) string {
	return fmt.Sprintf("the recorded setting %s is not known here: replays are without it", text.Line(setting))
}

// settingsIn cuts settings at their commas, except for those in brackets.
func settingsIn(s string) (out []string) {
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth <= 0:
			out, from = append(out, s[from:i]), i+1
		}
	}
	return slices.DeleteFunc(append(out, s[from:]), func(setting string) bool { return strings.TrimSpace(setting) == "" })
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
	gap       *gap       // nil if the history is whole
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

// gap is what a torn history lacks. Buffers whose allocation or free is missing count for as long
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
