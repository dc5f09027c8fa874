package snapshot

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
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
	Peak   Tally        `json:"peak"`
	Total  Tally        `json:"total"`
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
	Frames      []Frame
	Sites       []siteJSON
	Retired     []retiredJSON
	Allocations allocationTable
	Lifetimes   []lifetimesJSON
	Growing     []seriesJSON
}

// siteJSON is a SiteEntry; live, peak and total count buffers.
type siteJSON struct {
	Kind    Kind        `json:"kind"`
	DType   alloc.DType `json:"dtype,omitempty"`
	Shape   alloc.Shape `json:"shape"`
	Section string      `json:"section,omitempty"`
	Stack   int         `json:"stack"` // index in stacks; -1 is unknown
	Site    Frame       `json:"site"`
	Live    int64       `json:"live_count"`
	Peak    int64       `json:"peak_count"`
	Total   int64       `json:"total_count"`
	Stream  uint8       `json:"stream,omitempty"`     // index in streams
	Each    alloc.Bytes `json:"each_bytes,omitempty"` // where the dtype is not known

	Memory alloc.Memory `json:"memory,omitzero"`
}

type retiredJSON struct {
	Section string `json:"section,omitempty"`
	Stack   int    `json:"stack"`
	Site    Frame  `json:"site"`
	Total   Tally  `json:"total"`

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

// lifetimesJSON is the JSON form of the Lifetimes of a line of code.
type lifetimesJSON struct {
	Site Frame    `json:"site"`
	Ages []uint32 `json:"ages"` // how many lived less than 2^10 ns, 2^11 ns and so on
	Last uint64   `json:"last"` // number of the event in which the last one was freed
}

// seriesJSON is the JSON form of the Series of a line of code.
type seriesJSON struct {
	Site  Frame   `json:"site"`
	Level Tally   `json:"level"`
	Marks int     `json:"marks"`
	Width int     `json:"width"` // marks a window
	Low   []Tally `json:"low"`
}

func (t *Tables) lifetimesJSON() []lifetimesJSON {
	lines := make([]lifetimesJSON, 0, len(t.Lifetimes))
	for site, l := range t.Lifetimes {
		used := len(l.ages)
		for used > 0 && l.ages[used-1] == 0 {
			used--
		}
		lines = append(lines, lifetimesJSON{site, l.ages[:used], l.last})
	}
	slices.SortFunc(lines, func(x, y lifetimesJSON) int { return x.Site.Compare(y.Site) })
	return lines
}

func (t *Tables) seriesJSON() []seriesJSON {
	lines := make([]seriesJSON, 0, len(t.Growing))
	for site, s := range t.Growing {
		lines = append(lines, seriesJSON{site, s.Level, s.marks, s.width, s.low[:s.windows()]})
	}
	slices.SortFunc(lines, func(x, y seriesJSON) int { return x.Site.Compare(y.Site) })
	return lines
}

// load returns the lifetimes that a file tells of.
func (in lifetimesJSON) load() (*Lifetimes, error) {
	l := &Lifetimes{last: in.Last}
	if len(in.Ages) > len(l.ages) || in.Last == 0 {
		return nil, fmt.Errorf("%d ages, the last of event %d", len(in.Ages), in.Last)
	}
	copy(l.ages[:], in.Ages)
	return l, nil
}

// load returns the series that a file tells of.
func (in seriesJSON) load() (*Series, error) {
	s := &Series{Level: in.Level, marks: in.Marks, width: in.Width}
	if in.Width < 1 || in.Marks < 0 || len(in.Low) > windows || len(in.Low) != s.windows() {
		return nil, fmt.Errorf("%d low-water marks, of %d marks each, for %d marks", len(in.Low), in.Width, in.Marks)
	}
	copy(s.low[:], in.Low)
	return s, nil
}

// allocationTable is the allocations of a file, whose sites and sections it may tell
// of later.
type allocationTable struct {
	base     time.Time // Since counts from here
	entries  []AllocationEntry
	sections []string // of each entry; nil while none has one
}
