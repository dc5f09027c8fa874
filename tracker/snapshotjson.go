package tracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
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
}

// snapshotTables are the tables: they refer to each other by index.
type snapshotTables struct {
	Segments    []alloc.Segment  `json:"segments,omitempty"`
	Stacks      []stackJSON      `json:"stacks"`
	Frames      []Frame          `json:"frames"`
	Sites       []siteJSON       `json:"sites"`
	Retired     []retiredJSON    `json:"retired,omitempty"`
	Allocations []allocationJSON `json:"allocations"`
}

// siteJSON is a siteEntry; live, peak and total count buffers.
type siteJSON struct {
	Kind    Kind        `json:"kind"`
	DType   alloc.DType `json:"dtype"`
	Shape   alloc.Shape `json:"shape"`
	Section string      `json:"section,omitempty"`
	Stack   int         `json:"stack"` // index in stacks; -1 is unknown
	Site    Frame       `json:"site"`
	Live    int64       `json:"live_count"`
	Peak    int64       `json:"peak_count"`
	Total   int64       `json:"total_count"`
}

type retiredJSON struct {
	Section string `json:"section,omitempty"`
	Stack   int    `json:"stack"`
	Site    Frame  `json:"site"`
	Total   Tally  `json:"total"`
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

// WriteJSON writes the snapshot as one JSON object, in memory that does not
// grow with the number of live buffers, but with the blocks of one segment. docs/snapshot.schema.json describes it.
func (s *Snapshot) WriteJSON(w io.Writer) error {
	out := newTableWriter(w)
	s.writeTo(out)
	if err := out.flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func (s *Snapshot) writeTo(out *tableWriter) {
	out.head(snapshotHead{
		SnapshotSchema, SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.Levels, s.Peak, s.Total, s.Events, s.Cache,
	})
	s.writeTables(out)
	out.bytes([]byte("}\n"))
}

func (s *Snapshot) writeTables(out *tableWriter) {
	if len(s.Segments) > 0 {
		table(out, "segments", s.Segments, func(b []byte, e alloc.Segment) ([]byte, error) {
			text, err := e.MarshalJSON() // which json.Marshal would go through once more
			return append(b, text...), err
		})
	}
	index, order := s.usedStacks()
	frames := newFrameTable()
	table(out, "stacks", order, func(b []byte, id callstack.ID) ([]byte, error) {
		return frames.appendStack(b, s.stacks.resolve(id)), nil
	})
	frames.write(out, len(order))
	table(out, "sites", s.sites, asJSON(func(e siteEntry) any {
		g := e.group
		return siteJSON{g.kind, g.dtype, g.shape, s.sections[e.section], index[e.stack], s.stacks.site(e.stack), e.live, e.peak, e.total}
	}))
	if len(s.retired) > 0 {
		table(out, "retired", s.retired, asJSON(func(e retiredEntry) any {
			return retiredJSON{s.sections[e.section], index[e.stack], s.stacks.site(e.stack), e.total}
		}))
	}
	table(out, "allocations", s.allocations, func(b []byte, a allocationEntry) ([]byte, error) {
		return allocationJSON{
			a.seq, s.epoch.Add(a.since), a.ptr, int(a.site), a.allocated, a.label, s.sections[s.sites[a.site].section], a.foreign, a.lost,
		}.appendJSON(b)
	})
}

// usedStacks numbers the stacks that the snapshot refers to.
func (s *Snapshot) usedStacks() (index map[callstack.ID]int, order []callstack.ID) {
	index = map[callstack.ID]int{0: -1}
	use := func(id callstack.ID) {
		if _, ok := index[id]; !ok {
			index[id] = len(order)
			order = append(order, id)
		}
	}
	for _, e := range s.sites {
		use(e.stack)
	}
	for _, e := range s.retired {
		use(e.stack)
	}
	return index, order
}

// MarshalJSON is WriteJSON into memory.
func (s *Snapshot) MarshalJSON() ([]byte, error) { return marshal(s.WriteJSON) }

// ReadSnapshot reads what WriteJSON wrote. The error says what is wrong with
// the text: torn, of another version, or at odds with itself.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	s := new(Snapshot)
	dec := json.NewDecoder(r)
	if err := dec.Decode(s); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = fmt.Errorf("the text ends before the snapshot does: %w", io.ErrUnexpectedEOF)
		}
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return s, nil
}

// maxOrdinal bounds the number of a device, by which formats have a list of devices.
const maxOrdinal = 1<<16 - 1

// UnmarshalJSON reads what WriteJSON wrote.
func (s *Snapshot) UnmarshalJSON(text []byte) error {
	var in struct {
		snapshotHead
		snapshotTables
	}
	var kind struct {
		Schema  string `json:"schema"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	if err := checkSchema(kind.Schema, kind.Version, SnapshotSchema, SnapshotVersion); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if in.Ordinal < 0 || in.Ordinal > maxOrdinal {
		return fmt.Errorf("device %d: want 0 to %d", in.Ordinal, maxOrdinal)
	}
	if err := in.Origin.check(); err != nil {
		return fmt.Errorf("origin: %w", err)
	}
	loaded := Snapshot{
		Time: in.Time, Origin: in.Origin, Device: in.Device, Ordinal: in.Ordinal, Levels: in.Levels,
		Peak: in.Peak, Total: in.Total, Events: in.Events, Cache: in.Cache, Segments: in.Segments, epoch: in.Time,
	}
	if err := newTableLoader(&loaded).load(in.snapshotTables); err != nil {
		return err
	}
	*s = loaded
	return nil
}

// checkSchema refuses what is not of the schema, or of a later version.
func checkSchema(schema string, version int, wantSchema string, latest int) error {
	switch {
	case schema != wantSchema:
		return fmt.Errorf("the schema is %q, want %q", schema, wantSchema)
	case version < 1 || version > latest:
		return fmt.Errorf("%s of version %d, this program reads versions up to %d", schema, version, latest)
	}
	return nil
}
