package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Read reads what WriteJSON wrote, packed by gzip or not, and keeps no text of it. The
// error says what is wrong with the text: torn, of another version, or at odds with itself.
func Read(r io.Reader) (*Snapshot, error) {
	in, err := newJSONStream(r)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	s, err := readSnapshot(in)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("read snapshot: the text ends before the snapshot does: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, fmt.Errorf("read snapshot: %w", err)
	case s == nil:
		return nil, errors.New("read snapshot: it is null")
	}
	return s, nil
}

// maxOrdinal bounds the number of a device, by which formats have a list of devices.
const maxOrdinal = 1<<16 - 1

// UnmarshalJSON reads what WriteJSON wrote.
func (s *Snapshot) UnmarshalJSON(text []byte) error {
	in, err := newJSONStream(bytes.NewReader(text))
	if err != nil {
		return err
	}
	read, err := readSnapshot(in)
	if err == nil && read != nil {
		*s = *read
	}
	return err
}

// readSnapshot reads a snapshot; nil if it is null.
func readSnapshot(in *jsonStream) (*Snapshot, error) {
	var head snapshotHead
	var tables snapshotTables
	var small rest
	names := make(texts)
	found, err := in.members(func(key string) error {
		switch key {
		case "segments":
			return in.elements(func() error {
				segment, err := readSegment(in)
				tables.Segments = append(tables.Segments, segment)
				return err
			})
		case "stacks":
			return readTable(in, &tables.Stacks, stackEntryBytes, func(text []byte, e *stackJSON) error { return e.read(in, text) })
		case "frames":
			return readTable(in, &tables.Frames, frameEntryBytes, func(text []byte, f *Frame) error { return readFrame(text, f, names) })
		case "sites":
			return readTable(in, &tables.Sites, siteEntryBytes, func(text []byte, e *siteJSON) error { return readSite(text, e, names) })
		case "retired":
			return readTable(in, &tables.Retired, siteEntryBytes, unmarshal)
		case "allocations":
			return tables.Allocations.readFrom(in)
		case "lifetimes":
			return readTable(in, &tables.Lifetimes, siteEntryBytes, unmarshal)
		case "growing":
			return readTable(in, &tables.Growing, siteEntryBytes, unmarshal)
		}
		return small.add(in, key)
	})
	if !found || err != nil {
		return nil, err
	}
	if err := small.unmarshal(&head); err != nil {
		return nil, err
	}
	return loadSnapshot(head, tables)
}

// readSegment reads a segment, in the JSON form of package alloc.
func readSegment(in *jsonStream) (alloc.Segment, error) {
	var head struct {
		Ptr        alloc.Ptr    `json:"address"`
		Size       alloc.Bytes  `json:"bytes"`
		Pool       alloc.Pool   `json:"pool"`
		Stream     alloc.Stream `json:"stream"`
		Expandable bool         `json:"expandable"`
		Private    string       `json:"private_pool"`
	}
	var blocks []alloc.Block
	var small rest
	_, err := in.members(func(key string) error {
		if key == "blocks" {
			return readTable(in, &blocks, blockEntryBytes, readBlock)
		}
		return small.add(in, key)
	})
	if err == nil {
		err = small.unmarshal(&head)
	}
	if err != nil {
		return alloc.Segment{}, err
	}
	return alloc.Segment{Ptr: head.Ptr, Size: head.Size, Pool: head.Pool, Stream: head.Stream, Expandable: head.Expandable, Private: head.Private}.With(slices.Clip(blocks))
}

func readBlock(text []byte, b *alloc.Block) error {
	if flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "address":
			n, ok = uintOf(value)
			b.Ptr = alloc.Ptr(n)
		case "bytes":
			n, ok = uintOf(value)
			b.Size = alloc.Bytes(n)
		case "requested_bytes":
			n, ok = uintOf(value)
			b.Requested = alloc.Bytes(n)
		case "state":
			return text && b.State.UnmarshalText(value) == nil
		}
		return ok && !text
	}) {
		return nil
	}
	var in struct {
		Ptr       alloc.Ptr        `json:"address"`
		Size      alloc.Bytes      `json:"bytes"`
		Requested alloc.Bytes      `json:"requested_bytes"`
		State     alloc.BlockState `json:"state"`
	}
	err := json.Unmarshal(text, &in)
	*b = alloc.Block(in)
	return err
}

// readSite reads a site whose names are among those of a file.
func readSite(text []byte, e *siteJSON, names texts) (err error) {
	if flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "kind":
			e.Kind, err = ParseKind(names.of(value))
			return text && err == nil
		case "dtype":
			return text && e.DType.UnmarshalText(value) == nil
		case "section":
			e.Section = names.of(value)
			return text
		case "shape":
			e.Shape = nil
			return flatList(value, func(value []byte, text bool) bool {
				n, ok := uintOf(value)
				e.Shape = append(e.Shape, int(n))
				return ok && !text && uint64(int(n)) == n
			}) && e.Shape != nil // an empty one is not an unknown one
		case "site":
			return readFrame(value, &e.Site, names) == nil
		case "stack":
			n, ok = uintOf(value)
			e.Stack = int(n)
			ok = ok && uint64(e.Stack) == n
		case "live_count":
			e.Live, ok = intOf(value)
		case "peak_count":
			e.Peak, ok = intOf(value)
		case "total_count":
			e.Total, ok = intOf(value)
		}
		return ok && !text
	}) {
		return nil
	}
	*e = siteJSON{}
	return json.Unmarshal(text, e)
}

func (t *allocationTable) readFrom(in *jsonStream) error {
	return in.elements(func() error {
		text, err := in.raw()
		if err == nil {
			err = in.r.Use(allocationBytes)
		}
		if err != nil {
			return err
		}
		a, err := readAllocation(text)
		if err != nil {
			return err
		}
		return t.add(a)
	})
}

func (t *allocationTable) add(a allocationJSON) error {
	if a.Site != int(int32(a.Site)) {
		return fmt.Errorf("allocation %d: there is no site %d", len(t.entries), a.Site)
	}
	if len(t.entries) == 0 {
		t.base = a.Time
	}
	if a.Section != "" && t.sections == nil {
		t.sections = make([]string, len(t.entries), cap(t.entries))
	}
	if t.sections != nil {
		t.sections = append(t.sections, a.Section)
	}
	t.entries = append(t.entries, AllocationEntry{
		Site: int32(a.Site), Foreign: a.Registered, Lost: a.Lost, Ptr: a.Ptr,
		Allocated: a.Allocated, Since: a.Time.Sub(t.base), Seq: a.Seq, Label: a.Label,
	})
	return nil
}

func readAllocation(text []byte) (a allocationJSON, err error) {
	if flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "seq":
			a.Seq, ok = uintOf(value)
		case "time":
			a.Time, err = time.Parse(time.RFC3339Nano, string(value))
			return text && err == nil
		case "address":
			n, ok = uintOf(value)
			a.Ptr = alloc.Ptr(n)
		case "site":
			n, ok = uintOf(value)
			a.Site = int(n)
		case "allocated_bytes":
			n, ok = uintOf(value)
			a.Allocated = alloc.Bytes(n)
		}
		return ok && !text
	}) {
		return a, nil
	}
	a = allocationJSON{}
	return a, json.Unmarshal(text, &a)
}

// loadSnapshot makes a snapshot of what a file holds, if it is one and holds together.
func loadSnapshot(in snapshotHead, from snapshotTables) (*Snapshot, error) {
	if err := checkSchema(in.Schema, in.Version, SnapshotSchema, SnapshotVersion); err != nil {
		return nil, err
	}
	if in.Ordinal < 0 || in.Ordinal > maxOrdinal {
		return nil, fmt.Errorf("device %d: want 0 to %d", in.Ordinal, maxOrdinal)
	}
	if err := in.Origin.check(); err != nil {
		return nil, fmt.Errorf("origin: %w", err)
	}
	if err := checkStreams(in.Streams); err != nil {
		return nil, err
	}
	tables, err := loadTables(from, in.Time, in.Streams)
	if err != nil {
		return nil, err
	}
	if !in.Warm.IsZero() {
		tables.Warm = in.Warm.Sub(tables.Epoch)
	}
	return &Snapshot{Head{
		Time: in.Time, Origin: in.Origin, Device: in.Device, Ordinal: in.Ordinal, Levels: in.Levels,
		Peak: in.Peak, Total: in.Total, Events: in.Events, Cache: in.Cache, Segments: from.Segments, Settings: in.Settings,
	}, tables}, nil
}

// tableLoader makes the tables of a snapshot from those of a file, if every index and
// sum in them holds.
type tableLoader struct {
	Tables
	stacks   StackTable
	sections map[string]uint32
	split    map[splitSite]int32
}

// splitSite is the part of a site that is in another section.
type splitSite struct {
	site    int
	section uint32
}

func loadTables(in snapshotTables, epoch time.Time, streams []alloc.Stream) (Tables, error) {
	l := &tableLoader{
		Tables:   Tables{Sections: []string{""}, Streams: streams, Epoch: epoch},
		sections: map[string]uint32{"": 0}, split: make(map[splitSite]int32),
	}
	err := l.load(in)
	l.Stacks = &l.stacks
	return l.Tables, err
}

func (l *tableLoader) load(in snapshotTables) error {
	stacks, err := loadStacks(in.Stacks, in.Frames)
	if err != nil {
		return err
	}
	l.stacks = StackTable{stacks: stacks, sites: make([]Frame, len(stacks))}
	for i, e := range in.Sites {
		if err := l.site(e); err != nil {
			return fmt.Errorf("site %d: %w", i, err)
		}
	}
	for i, e := range in.Retired {
		at, err := l.place(e.Stack, e.Site, e.Section)
		if err != nil {
			return fmt.Errorf("retired %d: %w", i, err)
		}
		l.Retired = append(l.Retired, RetiredEntry{at, e.Memory, e.Total})
	}
	if err := l.allocations(in.Allocations); err != nil {
		return err
	}
	return l.leaks(in)
}

func (l *tableLoader) place(stack int, site Frame, section string) (Place, error) {
	if stack < -1 || stack >= len(l.stacks.stacks) {
		return Place{}, fmt.Errorf("stack %d of %d", stack, len(l.stacks.stacks))
	}
	if stack >= 0 {
		l.stacks.sites[stack] = site
	}
	return Place{StackID(stack + 1), l.section(section)}, nil
}

func (l *tableLoader) section(path string) uint32 {
	section, ok := l.sections[path]
	if !ok {
		section = uint32(len(l.Sections))
		l.sections[path] = section
		l.Sections = append(l.Sections, path)
	}
	return section
}

func (l *tableLoader) site(e siteJSON) error {
	at, err := l.place(e.Stack, e.Site, e.Section)
	if err != nil {
		return err
	}
	x, err := readTensor(e.Shape, e.DType, e.Kind, e.Memory, e.Each)
	if err != nil {
		return err
	}
	if most := max(e.Live, e.Peak, e.Total); min(e.Live, e.Peak) < 0 || e.Live > e.Total || x.Each > 0 && most > int64(alloc.MaxBytes/x.Each) {
		return fmt.Errorf("%d live, %d at the peak, %d in total", e.Live, e.Peak, e.Total)
	}
	l.Sites = append(l.Sites, SiteEntry{at, &x, e.Live, e.Peak, e.Total, e.Stream})
	return nil
}

// allocations takes over the entries of a file.
func (l *tableLoader) allocations(in allocationTable) error {
	sites, later := len(l.Sites), in.base.Sub(l.Epoch)
	for i := range in.entries {
		a := &in.entries[i]
		if a.Site < 0 || int(a.Site) >= sites {
			return fmt.Errorf("allocation %d: site %d of %d", i, a.Site, sites)
		}
		a.Since += later
		if in.sections == nil || in.sections[i] == "" || in.sections[i] == l.Sections[l.Sites[a.Site].Section] {
			continue
		}
		site, err := l.splitOff(int(a.Site), l.section(in.sections[i]))
		if err != nil {
			return fmt.Errorf("allocation %d: %w", i, err)
		}
		a.Site = site
	}
	l.Allocations = in.entries
	return nil
}

// splitOff moves one allocation of a site to the part of it that is in a section.
// Files from before sites told their section need that; what was freed, and what
// was live at the peak, stays outside of all sections.
func (l *tableLoader) splitOff(site int, section uint32) (int32, error) {
	whole := &l.Sites[site]
	if whole.Live == 0 {
		return 0, fmt.Errorf("in section %q, but no buffer of site %d is left that could be", l.Sections[section], site)
	}
	i, ok := l.split[splitSite{site, section}]
	if !ok {
		i = int32(len(l.Sites))
		l.split[splitSite{site, section}] = i
		l.Sites = append(l.Sites, SiteEntry{Place: Place{whole.Stack, section}, Tensor: whole.Tensor, Stream: whole.Stream})
		whole = &l.Sites[site]
	}
	whole.Live, whole.Total = whole.Live-1, whole.Total-1
	l.Sites[i].Live, l.Sites[i].Total = l.Sites[i].Live+1, l.Sites[i].Total+1
	return i, nil
}

// leaks enters what Suspects and Growth go by.
func (l *tableLoader) leaks(in snapshotTables) error {
	l.Lifetimes, l.Growing = make(map[Frame]*Lifetimes, len(in.Lifetimes)), make(map[Frame]*Series, len(in.Growing))
	for i, e := range in.Lifetimes {
		its, err := e.load()
		if err != nil {
			return fmt.Errorf("lifetimes %d: %w", i, err)
		}
		l.Lifetimes[e.Site] = its
	}
	for i, e := range in.Growing {
		its, err := e.load()
		if err != nil {
			return fmt.Errorf("growing %d: %w", i, err)
		}
		l.Growing[e.Site] = its
	}
	return nil
}
