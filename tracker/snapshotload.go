package tracker

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// tableLoader fills in the tables of a snapshot that is read, if every index and
// sum in them holds.
type tableLoader struct {
	*Snapshot
	stacks   loadedStacks
	sections map[string]uint32
	split    map[splitSite]int32
}

// splitSite is the part of a site that is in another section.
type splitSite struct {
	site    int
	section uint32
}

func newTableLoader(s *Snapshot) *tableLoader {
	s.sections = []string{""}
	return &tableLoader{Snapshot: s, sections: map[string]uint32{"": noPath}, split: make(map[splitSite]int32)}
}

func (l *tableLoader) load(in snapshotTables) error {
	stacks, err := loadStacks(in.Stacks, in.Frames)
	if err != nil {
		return err
	}
	l.stacks = loadedStacks{stacks: stacks, sites: make([]Frame, len(stacks))}
	l.Snapshot.stacks = l.stacks
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
		l.retired = append(l.retired, retiredEntry{at, e.Total})
	}
	sites := len(l.sites)
	for i, a := range in.Allocations {
		if a.Site < 0 || a.Site >= sites || a.Site > math.MaxInt32 {
			return fmt.Errorf("allocation %d: site %d of %d", i, a.Site, sites)
		}
		if err := l.allocation(a); err != nil {
			return fmt.Errorf("allocation %d: %w", i, err)
		}
	}
	return nil
}

func (l *tableLoader) place(stack int, site Frame, section string) (place, error) {
	if stack < -1 || stack >= len(l.stacks.stacks) {
		return place{}, fmt.Errorf("stack %d of %d", stack, len(l.stacks.stacks))
	}
	if stack >= 0 {
		l.stacks.sites[stack] = site
	}
	return place{callstack.ID(stack + 1), l.section(section)}, nil
}

func (l *tableLoader) section(path string) uint32 {
	section, ok := l.sections[path]
	if !ok {
		section = uint32(len(l.Snapshot.sections))
		l.sections[path] = section
		l.Snapshot.sections = append(l.Snapshot.sections, path)
	}
	return section
}

func (l *tableLoader) site(e siteJSON) error {
	at, err := l.place(e.Stack, e.Site, e.Section)
	if err != nil {
		return err
	}
	x, err := newTensor(e.Shape, e.DType, e.Kind)
	if err != nil {
		return err
	}
	if most := max(e.Live, e.Peak, e.Total); min(e.Live, e.Peak) < 0 || e.Live > e.Total || x.each > 0 && most > int64(alloc.MaxBytes/x.each) {
		return fmt.Errorf("%d live, %d at the peak, %d in total", e.Live, e.Peak, e.Total)
	}
	l.sites = append(l.sites, siteEntry{at, &group{tensor: x}, e.Live, e.Peak, e.Total})
	return nil
}

func (l *tableLoader) allocation(a allocationJSON) error {
	site := int32(a.Site)
	if a.Section != "" && a.Section != l.Snapshot.sections[l.sites[site].section] {
		var err error
		if site, err = l.splitOff(a.Site, l.section(a.Section)); err != nil {
			return err
		}
	}
	l.allocations = append(l.allocations, allocationEntry{
		site: site, foreign: a.Registered, lost: a.Lost, ptr: a.Ptr,
		allocated: a.Allocated, since: a.Time.Sub(l.epoch), seq: a.Seq, label: a.Label,
	})
	return nil
}

// splitOff moves one allocation of a site to the part of it that is in a section.
// Files from before sites told their section need that; what was freed, and what
// was live at the peak, stays outside of all sections.
func (l *tableLoader) splitOff(site int, section uint32) (int32, error) {
	whole := &l.sites[site]
	if whole.live == 0 {
		return 0, fmt.Errorf("in section %q, but no buffer of site %d is left that could be", l.Snapshot.sections[section], site)
	}
	i, ok := l.split[splitSite{site, section}]
	if !ok {
		i = int32(len(l.sites))
		l.split[splitSite{site, section}] = i
		l.sites = append(l.sites, siteEntry{place: place{whole.stack, section}, group: whole.group})
		whole = &l.sites[site]
	}
	whole.live, whole.total = whole.live-1, whole.total-1
	l.sites[i].live, l.sites[i].total = l.sites[i].live+1, l.sites[i].total+1
	return i, nil
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
