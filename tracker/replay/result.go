package replay

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Recorded returns the Config of the allocator that a record is of, without a limit of
// memory: Driver if it has neither a cache nor segments. The error is that of settings that cache.ParseConfig refuses.
func Recorded(r *snapshot.Record) (Config, error) {
	conf, err := cache.ParseConfig(r.Snapshot.Settings[settingsKey])
	if err != nil {
		return Config{}, fmt.Errorf("replay: the recorded allocator: %w", err)
	}
	if r.Snapshot.Cache == nil && len(r.Snapshot.Segments) == 0 && !r.Begin().Segments {
		return Config{Allocator: Driver}, nil
	}
	cfg := Config{Allocator: Cache, Conf: conf}
	for _, s := range r.Snapshot.Segments {
		conf.ExpandableSegments = conf.ExpandableSegments || s.Expandable
	}
	if conf.ExpandableSegments {
		cfg.Allocator = Expandable
	}
	return cfg, nil
}

// Result is what a replay came to.
type Result struct {
	Device    string      `json:"device"` // of the record
	Ordinal   int         `json:"ordinal"`
	Allocator Allocator   `json:"allocator"`
	Memory    alloc.Bytes `json:"memory_bytes,omitempty"` // 0 is without end
	Events    int64       `json:"events"`                 // of the history
	// Fits says that every request got its memory, those included that failed when they
	// were recorded. If one did not, the replay ends there, and its levels are those up to
	// then.
	Fits bool `json:"fits"`
	Levels
	// Smallest is the least memory on which a search found it to fit; see Smallest.
	Smallest alloc.Bytes `json:"smallest_memory_bytes,omitempty"`
	Replays  int         `json:"replays,omitempty"` // that the search took
	OOM      *OOM        `json:"oom,omitempty"`
	Start    Start       `json:"start"`
	Recorded Levels      `json:"recorded"` // what the record says
	Gap      *Gap        `json:"gap,omitempty"`
}

// Start is the state before the first event.
type Start struct {
	Dropped   uint64      `json:"dropped_events"` // that the record does not have
	Buffers   int         `json:"buffers"`
	Requested alloc.Bytes `json:"requested_bytes"`
	Reserved  alloc.Bytes `json:"reserved_bytes"` // as recorded
	Layout    Layout      `json:"layout"`         // in the replay
	// EarlierPeak is the most bytes requested before the first event, if that was more than any
	// later; 0 if it was not. It is not replayed.
	EarlierPeak alloc.Bytes `json:"earlier_peak_requested_bytes,omitempty"`
}

// OOM is a request that did not fit, and what there was then.
type OOM struct {
	Event       uint64         `json:"event"` // its number in the history
	Requested   alloc.Bytes    `json:"requested_bytes"`
	Free        alloc.Bytes    `json:"free_bytes"`         // of the device
	LargestHole alloc.Bytes    `json:"largest_hole_bytes"` // in the cache, for the request's stream
	Site        snapshot.Frame `json:"site"`               // the line that asked for it
	Reserved    alloc.Bytes    `json:"reserved_bytes"`
	Allocated   alloc.Bytes    `json:"allocated_bytes"` // in blocks
	Inactive    alloc.Bytes    `json:"inactive_bytes"`  // cached, in pieces too small
	Others      alloc.Bytes    `json:"others_bytes"`    // held by registered buffers
	// Beginning says that what was live before the first event does not fit. Requested is
	// the memory that it needs, Free all that there is.
	Beginning bool `json:"beginning,omitempty"`
}

// Gap is what a torn history lacks. The replay takes the buffers whose allocation or
// free is missing to have been there for as long as they can have been, and so tells what the program
// needed at most. The two peaks are what it needed at least: without those buffers.
type Gap struct {
	Event   uint64      `json:"event"` // the first at which something was missing
	Reason  string      `json:"reason"`
	Buffers int64       `json:"buffers"`
	Bytes   alloc.Bytes `json:"bytes"`
	Events  int64       `json:"events,omitempty"` // that are missing at the end

	LeastRequested alloc.Bytes `json:"least_peak_requested_bytes"`
	LeastAllocated alloc.Bytes `json:"least_peak_allocated_bytes"`
}
