// Package tablejson reads and writes the JSON form of the tables of snapshots and histories, which
// docs/snapshot.schema.json and docs/dump.schema.json describe. It checks every index and sum in a
// file, so the tables that it returns are consistent. The memory for reading is limited by the
// file's size. It knows only the tables: package snapshot adds the rest of a snapshot.
package tablejson

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

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
	whole := &l.Sites[site]
	if whole.Live == 0 {
		return 0, fmt.Errorf("in section %q, but no buffer of call site %d is left that could be", l.Sections[section], site)
	}
	i, ok := l.split[splitSite{site, section}]
	if !ok {
		i = int32(len(l.Sites))
		l.split[splitSite{site, section}] = i
		l.Sites = append(l.Sites, tables.SiteEntry{Place: tables.Place{Stack: whole.Stack, Section: section}, Tensor: whole.Tensor, Stream: whole.Stream})
		whole = &l.Sites[site]
	}
	whole.Live, whole.Total = whole.Live-1, whole.Total-1
	l.Sites[i].Live, l.Sites[i].Total = l.Sites[i].Live+1, l.Sites[i].Total+1
	return i, nil
}
