// Package tablejson reads and writes the JSON form of the tables of snapshots and histories, which
// docs/snapshot.schema.json and docs/dump.schema.json describe. It checks every index and sum in a
// file, so the tables that it returns are consistent. The memory for reading is limited by the
// file's size. It knows only the tables: package snapshot adds the rest of a snapshot.
package tablejson

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Snapshot is the tables of a snapshot as a file has them: they refer to each other by index.
type Snapshot struct {
	Segments    []alloc.Segment
	Stacks      []stackJSON
	Frames      []mem.Frame
	Sites       []siteJSON
	Retired     []retiredJSON
	Allocations allocationTable
	Lifetimes   []lifetimesJSON
	Paths       []pathJSON
	counted     bool // a list of paths exists, though it may be empty
}

// siteJSON is the JSON form of a SiteEntry. live, peak and total count buffers.
type siteJSON struct {
	Kind    mem.Kind    `json:"kind"`
	DType   alloc.DType `json:"dtype,omitempty"`
	Shape   alloc.Shape `json:"shape"`
	Section string      `json:"section,omitempty"`
	Stack   int         `json:"stack"` // index in stacks; -1 is unknown
	Site    mem.Frame   `json:"call_site"`
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
	Site    mem.Frame `json:"call_site"`
	Total   mem.Tally `json:"total"`

	Memory alloc.Memory `json:"memory,omitzero"`
}

type allocationJSON struct {
	Seq         uint64      `json:"seq"`
	Time        time.Time   `json:"time"`
	Ptr         alloc.Ptr   `json:"address"`
	Site        int         `json:"call_site"` // index in call_sites
	Allocated   alloc.Bytes `json:"allocated_bytes"`
	Label       string      `json:"label,omitempty"`
	Section     string      `json:"section,omitempty"`
	Registered  bool        `json:"registered,omitempty"`
	Unreachable bool        `json:"unreachable,omitempty"`
	Ordinals    [2]uint16   `json:"ordinals,omitzero"` // buffers that its line, and its path, had allocated before it, modulo 2^16
}

// allocationTable is the allocations of a file. The call sites and sections that they refer to may
// come later in the file.
type allocationTable struct {
	base     time.Time // Since counts from here
	entries  []tables.AllocationEntry
	sections []string // section of each entry; nil while no entry has one
}

// ReadSnapshot reads a snapshot, whose members that are no tables go into the head; nil if it is null.
func ReadSnapshot(in *jsonstream.Reader, head any) (*Snapshot, error) {
	tables := new(Snapshot)
	var small jsonstream.Rest
	names := make(jsonstream.Texts)
	found, err := in.Members(func(key string) error {
		switch key {
		case "segments":
			return in.Elements(func() error {
				segment, err := readSegment(in)
				tables.Segments = append(tables.Segments, segment)
				return err
			})
		case "stacks":
			return jsonstream.ReadTable(in, &tables.Stacks, stackEntryBytes, func(text []byte, e *stackJSON) error { return e.read(in, text) })
		case "frames":
			return jsonstream.ReadTable(in, &tables.Frames, frameEntryBytes, func(text []byte, f *mem.Frame) error { return readFrame(text, f, names) })
		case "call_sites", "sites":
			return jsonstream.ReadTable(in, &tables.Sites, siteEntryBytes, func(text []byte, e *siteJSON) error { return readSite(text, e, names) })
		case "retired":
			return jsonstream.ReadTable(in, &tables.Retired, siteEntryBytes, jsonstream.Unmarshal)
		case "allocations":
			return tables.Allocations.readFrom(in)
		case "lifetimes":
			return jsonstream.ReadTable(in, &tables.Lifetimes, siteEntryBytes, jsonstream.Unmarshal)
		case "paths":
			tables.counted = true
			return jsonstream.ReadTable(in, &tables.Paths, siteEntryBytes, jsonstream.Unmarshal)
		}
		return small.Add(in, key)
	})
	if !found || err != nil {
		return nil, err
	}
	return tables, small.Unmarshal(head)
}

// readSegment reads a segment. One whose blocks do not tile it is an error.
func readSegment(in *jsonstream.Reader) (alloc.Segment, error) {
	var s alloc.Segment
	var blocks []alloc.Block
	var small jsonstream.Rest
	_, err := in.Members(func(key string) error {
		if key == "blocks" {
			return jsonstream.ReadTable(in, &blocks, blockEntryBytes, readBlock)
		}
		return small.Add(in, key)
	})
	if err == nil {
		err = small.Unmarshal(&s)
	}
	if err != nil {
		return alloc.Segment{}, err
	}
	s.Blocks = slices.Clip(blocks)
	return s, s.Check()
}

func readBlock(text []byte, b *alloc.Block) error {
	return jsonstream.UnmarshalFlat(text, b, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "address":
			return !text && jsonstream.Number(value, &b.Ptr)
		case "bytes":
			return !text && jsonstream.Number(value, &b.Size)
		case "requested_bytes":
			return !text && jsonstream.Number(value, &b.Requested)
		case "state":
			return text && b.State.UnmarshalText(value) == nil
		}
		return false
	})
}

// readSite reads a call site. The entries of a file share the texts in names.
func readSite(text []byte, e *siteJSON, names jsonstream.Texts) error {
	return jsonstream.UnmarshalFlat(text, e, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "kind":
			kind, err := mem.ParseKind(names.Of(value))
			e.Kind = kind
			return text && err == nil
		case "dtype":
			return text && e.DType.UnmarshalText(value) == nil
		case "section":
			e.Section = names.Of(value)
			return text
		case "shape":
			e.Shape = nil
			return !text && jsonstream.FlatList(value, func(value []byte, text bool) bool {
				e.Shape = append(e.Shape, 0)
				return !text && jsonstream.Number(value, &e.Shape[len(e.Shape)-1])
			}) && e.Shape != nil // an empty one is not an unknown one
		case "call_site", "site":
			return !text && readFrame(value, &e.Site, names) == nil
		case "stack":
			return !text && jsonstream.Number(value, &e.Stack)
		case "live_count":
			return !text && jsonstream.Number(value, &e.Live)
		case "peak_count":
			return !text && jsonstream.Number(value, &e.Peak)
		case "total_count":
			return !text && jsonstream.Number(value, &e.Total)
		}
		return false
	})
}

func (t *allocationTable) readFrom(in *jsonstream.Reader) error {
	return in.Elements(func() error {
		text, err := in.Raw()
		if err == nil {
			err = in.Use(allocationBytes)
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
		return fmt.Errorf("allocation %d: there is no call site %d", len(t.entries), a.Site)
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
	t.entries = append(t.entries, tables.AllocationEntry{
		Site: int32(a.Site), Foreign: a.Registered, Unreachable: a.Unreachable, InLine: a.Ordinals[0], InPath: a.Ordinals[1], Ptr: a.Ptr,
		Allocated: a.Allocated, Since: a.Time.Sub(t.base), Seq: a.Seq, Label: a.Label,
	})
	return nil
}

func readAllocation(text []byte) (a allocationJSON, err error) {
	err = jsonstream.UnmarshalFlat(text, &a, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "seq":
			return !text && jsonstream.Number(value, &a.Seq)
		case "time":
			at, err := time.Parse(time.RFC3339Nano, string(value))
			a.Time = at
			return text && err == nil
		case "address":
			return !text && jsonstream.Number(value, &a.Ptr)
		case "call_site", "site":
			return !text && jsonstream.Number(value, &a.Site)
		case "allocated_bytes":
			return !text && jsonstream.Number(value, &a.Allocated)
		case "ordinals":
			i := 0
			return !text && jsonstream.FlatList(value, func(value []byte, text bool) bool {
				i++
				return !text && i <= len(a.Ordinals) && jsonstream.Number(value, &a.Ordinals[i-1])
			}) && i == len(a.Ordinals)
		}
		return false
	})
	return a, err
}

// tableLoader makes the tables of a snapshot from a file's tables. It checks every index and sum.
type tableLoader struct {
	tables.Tables
	stacks   tables.StackTable
	sections map[string]uint32
	split    map[splitSite]int32
}

// splitSite identifies the part of a call site that belongs to another section.
type splitSite struct {
	site    int
	section uint32
}

// Load returns the tables. Their times count from epoch. The error names an index or a sum in the
// file that is wrong.
func (in *Snapshot) Load(epoch time.Time, streams []alloc.Stream) (tables.Tables, error) {
	l := &tableLoader{
		Tables:   tables.Tables{Sections: []string{""}, Streams: streams, Epoch: epoch},
		sections: map[string]uint32{"": 0}, split: make(map[splitSite]int32),
	}
	err := l.load(in)
	l.Stacks = &l.stacks
	return l.Tables, err
}

func (l *tableLoader) load(in *Snapshot) error {
	stacks, err := loadStacks(in.Stacks, in.Frames)
	if err != nil {
		return err
	}
	l.stacks = tables.StackTable{Stacks: stacks, Sites: make([]mem.Frame, len(stacks))}
	for i, e := range in.Sites {
		if err := l.site(e); err != nil {
			return fmt.Errorf("call site %d: %w", i, err)
		}
	}
	for i, e := range in.Retired {
		at, err := l.place(e.Stack, e.Site, e.Section)
		if err != nil {
			return fmt.Errorf("retired %d: %w", i, err)
		}
		l.Retired = append(l.Retired, tables.RetiredEntry{Place: at, Memory: e.Memory, Total: e.Total})
	}
	if err := l.allocations(in.Allocations); err != nil {
		return err
	}
	return l.lifetimes(in)
}

func (l *tableLoader) place(stack int, site mem.Frame, section string) (tables.Place, error) {
	if stack < -1 || stack >= len(l.stacks.Stacks) {
		return tables.Place{}, fmt.Errorf("stack %d of %d", stack, len(l.stacks.Stacks))
	}
	if stack >= 0 {
		l.stacks.Sites[stack] = site
	}
	return tables.Place{Stack: tables.StackID(stack + 1), Section: l.section(section)}, nil
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
	x, err := tables.ReadTensor(e.Shape, e.DType, e.Kind, e.Memory, e.Each)
	if err != nil {
		return err
	}
	// A total may be of more bytes than there are numbers for; what was live at one time is not.
	if most := max(e.Live, e.Peak); min(e.Live, e.Peak) < 0 || e.Live > e.Total || x.Each > 0 && most > int64(math.MaxInt64/x.Each) {
		return fmt.Errorf("%d live, %d at the peak, %d in total", e.Live, e.Peak, e.Total)
	}
	l.Sites = append(l.Sites, tables.SiteEntry{Place: at, Tensor: &x, Live: e.Live, Peak: e.Peak, Total: e.Total, Stream: e.Stream})
	return nil
}

// allocations takes over the entries of a file.
func (l *tableLoader) allocations(in allocationTable) error {
	sites, later := len(l.Sites), in.base.Sub(l.Epoch)
	for i := range in.entries {
		a := &in.entries[i]
		if a.Site < 0 || int(a.Site) >= sites {
			return fmt.Errorf("allocation %d: call site %d of %d", i, a.Site, sites)
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

// splitOff moves one allocation of a call site to that call site's part for a section. Only files
// of early versions need this, whose call sites do not name a section. There, what was freed and
// what was live at the peak stays outside of all sections.
func (l *tableLoader) splitOff(site int, section uint32) (int32, error) {
	from := &l.Sites[site]
	if from.Live == 0 {
		return 0, fmt.Errorf("in section %q, but no buffer of call site %d is left that could be", l.Sections[section], site)
	}
	i, ok := l.split[splitSite{site, section}]
	if !ok {
		i = int32(len(l.Sites))
		l.split[splitSite{site, section}] = i
		l.Sites = append(l.Sites, tables.SiteEntry{Place: tables.Place{Stack: from.Stack, Section: section}, Tensor: from.Tensor, Stream: from.Stream})
		from = &l.Sites[site]
	}
	from.Live, from.Total = from.Live-1, from.Total-1
	l.Sites[i].Live, l.Sites[i].Total = l.Sites[i].Live+1, l.Sites[i].Total+1
	return i, nil
}

// WriteSnapshot writes a snapshot's tables and segments as the next members of an object.
func WriteSnapshot(out *jsonstream.Writer, t *tables.Tables, segments []alloc.Segment) {
	if len(segments) > 0 {
		jsonstream.Table(out, "segments", segments, jsonstream.AsJSON(func(s alloc.Segment) any { return s }))
	}
	index, order := usedStacks(t)
	frames := newFrameTable()
	jsonstream.Table(out, "stacks", order, func(b []byte, id tables.StackID) ([]byte, error) {
		return frames.appendStack(b, t.Stacks.Stack(id)), nil
	})
	frames.write(out, len(order))
	jsonstream.Table(out, "call_sites", t.Sites, jsonstream.AsJSON(func(e tables.SiteEntry) any {
		g := e.Tensor
		return siteJSON{g.Kind, g.DType, g.Shape, t.Sections[e.Section], index[e.Stack], t.Stacks.Site(e.Stack), e.Live, e.Peak, e.Total, e.Stream, g.Unknown(), g.Memory}
	}))
	if len(t.Retired) > 0 {
		jsonstream.Table(out, "retired", t.Retired, jsonstream.AsJSON(func(e tables.RetiredEntry) any {
			return retiredJSON{t.Sections[e.Section], index[e.Stack], t.Stacks.Site(e.Stack), e.Total, e.Memory}
		}))
	}
	jsonstream.Table(out, "allocations", t.Allocations, func(b []byte, a tables.AllocationEntry) ([]byte, error) {
		return allocationJSON{
			a.Seq, t.Epoch.Add(a.Since), a.Ptr, int(a.Site), a.Allocated, a.Label, t.Sections[t.Sites[a.Site].Section], a.Foreign, a.Unreachable, ordinals(t, a),
		}.appendJSON(b)
	})
	writeLifetimes(out, t, index)
}

// usedStacks numbers the stacks that the snapshot refers to.
func usedStacks(t *tables.Tables) (index map[tables.StackID]int, order []tables.StackID) {
	index = map[tables.StackID]int{0: -1}
	use := func(id tables.StackID) {
		if _, ok := index[id]; !ok {
			index[id] = len(order)
			order = append(order, id)
		}
	}
	for _, e := range t.Sites {
		use(e.Stack)
	}
	for _, e := range t.Retired {
		use(e.Stack)
	}
	return index, order
}

// appendJSON writes what the struct's tags say.
func (a allocationJSON) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendUint(append(b, `{"seq":`...), a.Seq, 10)
	b = a.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendUint(append(b, `","address":`...), uint64(a.Ptr), 10)
	b = strconv.AppendInt(append(b, `,"call_site":`...), int64(a.Site), 10)
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
	if a.Unreachable {
		b = append(b, `,"unreachable":true`...)
	}
	if a.Ordinals != [2]uint16{} {
		b = strconv.AppendUint(append(b, `,"ordinals":[`...), uint64(a.Ordinals[0]), 10)
		b = append(strconv.AppendUint(append(b, ','), uint64(a.Ordinals[1]), 10), ']')
	}
	return append(b, '}'), nil
}
