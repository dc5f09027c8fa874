package tracker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// The schema of a snapshot's JSON form. The version rises when a reader of the
// one before would misread it.
const (
	SnapshotSchema  = "gpumemtrack.snapshot"
	SnapshotVersion = 1
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
	Peak     Tally           `json:"peak"`
	Total    Tally           `json:"total"`
	Events   uint64          `json:"events"`
	Cache    *alloc.Stats    `json:"cache,omitempty"`
	Segments []alloc.Segment `json:"segments,omitempty"`
}

// snapshotTables are the tables: they refer to each other by index.
type snapshotTables struct {
	Stacks      []Stack          `json:"stacks"`
	Sites       []siteJSON       `json:"sites"`
	Retired     []retiredJSON    `json:"retired,omitempty"`
	Allocations []allocationJSON `json:"allocations"`
}

// siteJSON is a siteEntry; live, peak and total count buffers.
type siteJSON struct {
	Kind  Kind        `json:"kind"`
	DType alloc.DType `json:"dtype"`
	Shape alloc.Shape `json:"shape"`
	Stack int         `json:"stack"` // index in stacks; -1 is unknown
	Site  Frame       `json:"site"`
	Live  int64       `json:"live_count"`
	Peak  int64       `json:"peak_count"`
	Total int64       `json:"total_count"`
}

type retiredJSON struct {
	Stack int   `json:"stack"`
	Site  Frame `json:"site"`
	Total Tally `json:"total"`
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
// grow with the number of live buffers. docs/snapshot.schema.json describes it.
func (s *Snapshot) WriteJSON(w io.Writer) error {
	out := &tableWriter{w: bufio.NewWriter(w)}
	head, err := json.Marshal(snapshotHead{
		SnapshotSchema, SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.Levels, s.Peak, s.Total, s.Events, s.Cache, s.Segments,
	})
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	out.bytes(head[:len(head)-1])
	index, order := s.usedStacks()
	table(out, "stacks", slices.Values(order), func(id callstack.ID) any { return s.stacks.resolve(id) })
	table(out, "sites", slices.Values(s.sites), func(e siteEntry) any {
		g := e.group
		return siteJSON{g.kind, g.dtype, g.shape, index[e.stack], s.stacks.site(e.stack), e.live, e.peak, e.total}
	})
	if len(s.retired) > 0 {
		table(out, "retired", slices.Values(s.retired), func(e retiredEntry) any {
			return retiredJSON{index[e.stack], s.stacks.site(e.stack), e.total}
		})
	}
	table(out, "allocations", slices.Values(s.allocations), func(a allocationEntry) any {
		return allocationJSON{
			a.seq, s.epoch.Add(a.since), a.ptr, int(a.site), a.allocated, a.label, s.sections[a.section], a.foreign, a.lost,
		}
	})
	out.bytes([]byte("}\n"))
	if err := errors.Join(out.err, out.w.Flush()); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
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
	if err := in.Origin.check(); err != nil {
		return fmt.Errorf("origin: %w", err)
	}
	loaded := Snapshot{
		Time: in.Time, Origin: in.Origin, Device: in.Device, Ordinal: in.Ordinal, Levels: in.Levels,
		Peak: in.Peak, Total: in.Total, Events: in.Events, Cache: in.Cache, Segments: in.Segments, epoch: in.Time,
	}
	if err := loaded.load(in.snapshotTables); err != nil {
		return err
	}
	*s = loaded
	return nil
}

func checkSchema(schema string, version int, wantSchema string, wantVersion int) error {
	switch {
	case schema != wantSchema:
		return fmt.Errorf("the schema is %q, want %q", schema, wantSchema)
	case version != wantVersion:
		return fmt.Errorf("%s of version %d, this program reads version %d", schema, version, wantVersion)
	}
	return nil
}

// load fills in the tables, if every index and sum in them holds.
func (s *Snapshot) load(in snapshotTables) error {
	stacks := loadedStacks{stacks: in.Stacks, sites: make([]Frame, len(in.Stacks))}
	name := func(index int, site Frame) (callstack.ID, error) {
		if index < -1 || index >= len(in.Stacks) {
			return 0, fmt.Errorf("stack %d of %d", index, len(in.Stacks))
		}
		if index >= 0 {
			stacks.sites[index] = site
		}
		return callstack.ID(index + 1), nil
	}
	for i, e := range in.Sites {
		stack, err := name(e.Stack, e.Site)
		if err != nil {
			return fmt.Errorf("site %d: %w", i, err)
		}
		x, err := newTensor(e.Shape, e.DType, e.Kind)
		if err != nil {
			return fmt.Errorf("site %d: %w", i, err)
		}
		if most := max(e.Live, e.Peak, e.Total); min(e.Live, e.Peak) < 0 || e.Live > e.Total || x.each > 0 && most > int64(alloc.MaxBytes/x.each) {
			return fmt.Errorf("site %d: %d live, %d at the peak, %d in total", i, e.Live, e.Peak, e.Total)
		}
		s.sites = append(s.sites, siteEntry{&group{tensor: x}, stack, e.Live, e.Peak, e.Total})
	}
	for i, e := range in.Retired {
		stack, err := name(e.Stack, e.Site)
		if err != nil {
			return fmt.Errorf("retired %d: %w", i, err)
		}
		s.retired = append(s.retired, retiredEntry{stack, e.Total})
	}
	s.stacks = stacks
	return s.loadAllocations(in.Allocations)
}

func (s *Snapshot) loadAllocations(in []allocationJSON) error {
	s.sections = []string{""}
	sections := map[string]uint32{"": 0}
	for i, a := range in {
		if a.Site < 0 || a.Site >= len(s.sites) || a.Site > math.MaxInt32 {
			return fmt.Errorf("allocation %d: site %d of %d", i, a.Site, len(s.sites))
		}
		section, ok := sections[a.Section]
		if !ok {
			section = uint32(len(s.sections))
			sections[a.Section] = section
			s.sections = append(s.sections, a.Section)
		}
		s.allocations = append(s.allocations, allocationEntry{
			site: int32(a.Site), section: section, foreign: a.Registered, lost: a.Lost, ptr: a.Ptr,
			allocated: a.Allocated, since: a.Time.Sub(s.epoch), seq: a.Seq, label: a.Label,
		})
	}
	return nil
}

// loadedStacks are the stacks of a snapshot that was read; the ID is the index plus one.
type loadedStacks struct {
	stacks []Stack
	sites  []Frame
}

func (l loadedStacks) resolve(id callstack.ID) Stack {
	if id == 0 {
		return nil
	}
	return l.stacks[id-1]
}

func (l loadedStacks) site(id callstack.ID) Frame {
	if id == 0 {
		return Frame{}
	}
	return l.sites[id-1]
}
