package snapshot

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// The schema of a snapshot's JSON form. The version rises when a reader of the
// one before would misread it; files of earlier versions are read. In version 1 a stack
// was its frames, now it is their numbers in a table.
const (
	SnapshotSchema  = "gpumemtrack.snapshot"
	SnapshotVersion = 2
)

// snapshotHead is a snapshot's JSON form before its tables.
type snapshotHead struct {
	Schema  string    `json:"schema"`
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Origin  Origin    `json:"origin,omitzero"`
	Device  string    `json:"device"`
	Ordinal int       `json:"ordinal"`
	Levels
	Peak   mem.Tally    `json:"peak"`
	Total  mem.Tally    `json:"total"`
	Events uint64       `json:"events"`
	Cache  *alloc.Stats `json:"cache,omitempty"`

	Settings map[string]string `json:"settings,omitempty"`
	Streams  []alloc.Stream    `json:"streams,omitempty"`
	Warm     time.Time         `json:"warm,omitzero"` // the end of the warm-up before growing
}

// snapshotTables are the tables: they refer to each other by index.
type snapshotTables struct {
	Segments    []alloc.Segment
	Stacks      []stackJSON
	Frames      []mem.Frame
	Sites       []siteJSON
	Retired     []retiredJSON
	Allocations allocationTable
	Lifetimes   []tables.LifetimesJSON
	Growing     []tables.SeriesJSON
}

// siteJSON is a SiteEntry; live, peak and total count buffers.
type siteJSON struct {
	Kind    mem.Kind    `json:"kind"`
	DType   alloc.DType `json:"dtype,omitempty"`
	Shape   alloc.Shape `json:"shape"`
	Section string      `json:"section,omitempty"`
	Stack   int         `json:"stack"` // index in stacks; -1 is unknown
	Site    mem.Frame   `json:"site"`
	Live    int64       `json:"live_count"`
	Peak    int64       `json:"peak_count"`
	Total   int64       `json:"total_count"`
	Stream  uint8       `json:"stream,omitempty"`     // index in streams
	Each    alloc.Bytes `json:"each_bytes,omitempty"` // where the dtype is not known

	Memory alloc.Memory `json:"memory,omitzero"`
}

type retiredJSON struct {
	Section string    `json:"section,omitempty"`
	Stack   int       `json:"stack"`
	Site    mem.Frame `json:"site"`
	Total   mem.Tally `json:"total"`

	Memory alloc.Memory `json:"memory,omitzero"`
}

type allocationJSON struct {
	Seq        uint64      `json:"seq"`
	Time       time.Time   `json:"time"`
	Ptr        alloc.Ptr   `json:"address"`
	Site       int         `json:"site"` // index in sites
	Allocated  alloc.Bytes `json:"allocated_bytes"`
	Label      string      `json:"label,omitempty"`
	Section    string      `json:"section,omitempty"`
	Registered bool        `json:"registered,omitempty"`
	Lost       bool        `json:"lost,omitempty"`
}

// allocationTable is the allocations of a file, whose sites and sections it may tell
// of later.
type allocationTable struct {
	base     time.Time // Since counts from here
	entries  []tables.AllocationEntry
	sections []string // of each entry; nil while none has one
}
