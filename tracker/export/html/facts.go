package html

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// factsOf returns the facts about each device, up to maxDevices, and how many devices are left out. A device whose memory
// ran out comes first.
func factsOf(r *snapshot.Dump) (devices []*facts, more int) {
	all := append([]*snapshot.Dump{r}, r.Others...)
	if i := slices.IndexFunc(all, func(d *snapshot.Dump) bool { return d.OOM != nil && d.Snapshot != nil }); i > 0 {
		all = slices.Concat(all[i:i+1], all[:i], all[i+1:])
	}
	for _, d := range all {
		switch {
		case d.Snapshot == nil: // there is nothing to show
		case len(devices) == maxDevices:
			more++
		default:
			devices = append(devices, newFacts(d))
		}
	}
	return devices, more
}

// facts are what is known about a device, before small items are left out.
type facts struct {
	dump        *snapshot.Dump
	at          *snapshot.Snapshot // what is shown: the state at the error, or the dump's own
	moment      rewind.Moment
	usage       *export.Usage
	names       *lines.Names
	timeline    *timeline.Timeline // nil without a history
	moments     *moments
	kinds       []string // that the buffers have; nil if the source does not know kinds
	shapes      bool     // the source knows shapes
	types       bool     // the source knows element types, or types of memory
	source      walk.Source
	past        bool // the source covers more than the moment of its snapshot
	sections    []section
	profile     []sections.Row
	leaked      []leaks.Leak
	suspects    []string
	growth      []string
	whyReserved []string
}

// section is the live memory that one section of the program allocated.
type section struct {
	Path             string
	Live, Peak, Ever mem.Tally
}

func newFacts(r *snapshot.Dump) *facts {
	s, moment, err := rewind.To(r, "")
	if err != nil {
		s, moment = r.Snapshot, rewind.Moment{At: "end"} // not reached: a dump has its end
	}
	f := &facts{dump: r, at: s, moment: moment, usage: usageAt(r, s), profile: r.Profile}
	f.source = walk.SourceOf(r.Snapshot)
	events := len(tables.OfHistory(&r.History).Events) > 0
	f.past = f.source == walk.Tracker || events
	if events {
		f.timeline = timeline.New(r)
	}
	f.moments = newMoments(r, export.FromSnapshot(r.Snapshot), f.timeline, moment)
	f.findColumns(f.moments.rows)
	rows := f.usage.Rows
	f.names = lines.NewNames(func(yield func(mem.Frame) bool) {
		for i := range f.moments.rows {
			if !yield(f.moments.rows[i].CallSite) {
				return
			}
		}
	})
	f.sections = sectionsOf(rows)
	f.leaked = leaks.Live(s, leaks.OnlyUnreachable())
	for _, suspect := range leaks.Suspects(s) {
		f.suspects = append(f.suspects, suspect.String())
	}
	for _, growth := range leaks.Growing(s) {
		f.growth = append(f.growth, growth.String())
	}
	if len(s.Segments) > 0 {
		f.whyReserved = slices.Collect(strings.Lines(explain.Snapshot(s).String()))
	}
	return f
}

// findColumns sets which columns of a table the source can fill.
func (f *facts) findColumns(rows []export.Row) {
	byKind := make(map[mem.Kind]bool)
	for i := range rows {
		r := &rows[i]
		kind, err := mem.ParseKind(r.Kind)
		if err != nil {
			kind = mem.Kind(r.Kind)
		}
		byKind[kind] = true
		f.shapes = f.shapes || r.Shape != ""
		f.types = f.types || r.DType != "" || notPlain(r.Memory) != ""
	}
	if len(byKind) == 1 && byKind[""] {
		return
	}
	for _, kind := range slices.SortedFunc(maps.Keys(byKind), kinds.Compare[mem.Kind]) {
		f.kinds = append(f.kinds, kind.String())
	}
}

// usageAt returns the usage of a dump's whole history, with the live memory of a state.
func usageAt(r *snapshot.Dump, s *snapshot.Snapshot) *export.Usage {
	u := export.FromSnapshot(r.Snapshot)
	if s == r.Snapshot {
		return u
	}
	for i := range u.Rows {
		u.Rows[i].Live = mem.Tally{}
	}
	live := export.FromSnapshot(s)
	for i := range live.Rows {
		live.Rows[i].Peak, live.Rows[i].Total = mem.Tally{}, mem.Tally{}
	}
	u.Rows, u.Host = append(u.Rows, live.Rows...), live.Host
	return u
}

// sectionsOf sums up the rows by section, the one with most live bytes first; nil if there are no
// sections.
func sectionsOf(rows []export.Row) []section {
	index := make(tables.Numbers[string])
	var list []section
	for i := range rows {
		r := &rows[i]
		at, isNew := index.Of(r.Section)
		if isNew {
			list = append(list, section{Path: r.Section})
		}
		s := &list[at]
		s.Live, s.Peak, s.Ever = s.Live.Add(r.Live), s.Peak.Add(r.Peak), s.Ever.Add(r.Total)
	}
	if _, outside := index[""]; outside && len(list) == 1 {
		return nil
	}
	slices.SortStableFunc(list, func(x, y section) int { return int(max(-1, min(1, y.Live.Bytes-x.Live.Bytes))) })
	return list
}
