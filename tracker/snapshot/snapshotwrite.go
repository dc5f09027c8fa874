package snapshot

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// WriteJSON writes the snapshot as one JSON object, in memory that does not grow with the
// number of live buffers, but with the blocks of one segment. docs/snapshot.schema.json
// describes it. The error is the writer's.
func (s *Snapshot) WriteJSON(w io.Writer) error {
	out := jsonstream.NewWriter(w)
	s.writeTo(out)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func (s *Snapshot) writeTo(out *jsonstream.Writer) {
	out.Head(snapshotHead{
		jsonstream.SnapshotSchema, jsonstream.SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.Levels, s.Peak, s.Total, s.Events, s.Cache, s.Settings, s.tables.Streams, s.warm(),
	})
	s.writeTables(out)
	out.Bytes([]byte("}\n"))
}

func (s *Snapshot) writeTables(out *jsonstream.Writer) {
	if len(s.Segments) > 0 {
		jsonstream.Table(out, "segments", s.Segments, func(b []byte, e alloc.Segment) ([]byte, error) {
			text, err := json.Marshal(e)
			return append(b, text...), err
		})
	}
	index, order := s.usedStacks()
	frames := newFrameTable()
	jsonstream.Table(out, "stacks", order, func(b []byte, id tables.StackID) ([]byte, error) {
		return frames.appendStack(b, s.tables.Stacks.Stack(id)), nil
	})
	frames.write(out, len(order))
	jsonstream.Table(out, "sites", s.tables.Sites, jsonstream.AsJSON(func(e tables.SiteEntry) any {
		g := e.Tensor
		return siteJSON{g.Kind, g.DType, g.Shape, s.tables.Sections[e.Section], index[e.Stack], s.tables.Stacks.Site(e.Stack), e.Live, e.Peak, e.Total, e.Stream, g.Unknown(), g.Memory}
	}))
	if len(s.tables.Retired) > 0 {
		jsonstream.Table(out, "retired", s.tables.Retired, jsonstream.AsJSON(func(e tables.RetiredEntry) any {
			return retiredJSON{s.tables.Sections[e.Section], index[e.Stack], s.tables.Stacks.Site(e.Stack), e.Total, e.Memory}
		}))
	}
	jsonstream.Table(out, "allocations", s.tables.Allocations, func(b []byte, a tables.AllocationEntry) ([]byte, error) {
		return allocationJSON{
			a.Seq, s.tables.Epoch.Add(a.Since), a.Ptr, int(a.Site), a.Allocated, a.Label, s.tables.Sections[s.tables.Sites[a.Site].Section], a.Foreign, a.Lost,
		}.appendJSON(b)
	})
	if lines := s.tables.LifetimesJSON(); len(lines) > 0 {
		jsonstream.Table(out, "lifetimes", lines, jsonstream.AsJSON(func(l tables.LifetimesJSON) any { return l }))
	}
	if lines := s.tables.SeriesJSON(); len(lines) > 0 {
		jsonstream.Table(out, "growing", lines, jsonstream.AsJSON(func(l tables.SeriesJSON) any { return l }))
	}
}

// warm returns the end of the warm-up, if anything grows since.
func (s *Snapshot) warm() time.Time {
	if len(s.tables.Growing) == 0 {
		return time.Time{}
	}
	return s.tables.Epoch.Add(s.tables.Warm)
}

// usedStacks numbers the stacks that the snapshot refers to.
func (s *Snapshot) usedStacks() (index map[tables.StackID]int, order []tables.StackID) {
	index = map[tables.StackID]int{0: -1}
	use := func(id tables.StackID) {
		if _, ok := index[id]; !ok {
			index[id] = len(order)
			order = append(order, id)
		}
	}
	for _, e := range s.tables.Sites {
		use(e.Stack)
	}
	for _, e := range s.tables.Retired {
		use(e.Stack)
	}
	return index, order
}

// MarshalJSON is WriteJSON into memory.
func (s *Snapshot) MarshalJSON() ([]byte, error) { return jsonstream.Marshal(s.WriteJSON) }

// appendJSON writes what the struct's tags say.
func (a allocationJSON) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendUint(append(b, `{"seq":`...), a.Seq, 10)
	b = a.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendUint(append(b, `","address":`...), uint64(a.Ptr), 10)
	b = strconv.AppendInt(append(b, `,"site":`...), int64(a.Site), 10)
	b = strconv.AppendInt(append(b, `,"allocated_bytes":`...), int64(a.Allocated), 10)
	for _, text := range [...]struct{ key, value string }{{`,"label":`, a.Label}, {`,"section":`, a.Section}} {
		if text.value != "" {
			quoted, err := json.Marshal(text.value)
			if err != nil {
				return b, err
			}
			b = append(append(b, text.key...), quoted...)
		}
	}
	if a.Registered {
		b = append(b, `,"registered":true`...)
	}
	if a.Lost {
		b = append(b, `,"lost":true`...)
	}
	return append(b, '}'), nil
}

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
