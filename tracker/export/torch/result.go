package torch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/lifetimes"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// findSites finds the call site of each buffer live at the end: the stack in its block or, if the
// block has none, in its event.
func (r *rebuilder) findSites() error {
	for i := range r.ends {
		e := &r.ends[i]
		stack := e.stack
		about, known := r.ofBlock(e.value)
		about.host = e.host
		if e.entry >= 0 {
			begun := &r.entries[e.entry]
			if e.site = r.siteOf[e.entry]; !known && e.stream == begun.Stream && (stack == 0 || stack == begun.Stack) {
				r.sites[e.site].Live++
				continue
			}
			r.sites[e.site].Total-- // the block knows better
			if stack == 0 {
				stack = begun.Stack
			}
			if !known {
				about.kind = begun.Tensor.Kind.String()
			}
		}
		site, tensor, err := r.site(stack, e.stream, about, int64(e.Requested))
		if err != nil {
			return err
		}
		e.site = site
		r.sites[site].Live++
		r.sites[site].Total++
		if e.entry >= 0 {
			r.siteOf[e.entry] = site
			begun := &r.entries[e.entry]
			begun.Tensor, begun.Stack, begun.Section = tensor, stack, uint16(r.sites[site].Section)
		}
	}
	return nil
}

// findPeak finds the moment with the most live bytes in device memory, and counts what was live
// then. It does the same for host memory.
func (r *rebuilder) findPeak() {
	for _, host := range []bool{false, true} {
		most, at := r.peakOf(host)
		for i, n := range r.countsAt(at) {
			if r.sites[i].Tensor.Memory.OnHost() == host {
				r.sites[i].Peak = n
			}
		}
		if !host {
			r.at.Peak = most
		}
	}
	for _, site := range r.sites {
		if !site.Tensor.Memory.OnHost() {
			r.at.Total = r.at.Total.Add(site.Tensor.Tally(site.Total))
		}
	}
}

// peakOf returns the most that was live, and after how many entries.
func (r *rebuilder) peakOf(host bool) (most mem.Tally, at int) {
	var level mem.Tally
	for i, n := range r.countsAt(0) {
		if r.sites[i].Tensor.Memory.OnHost() == host {
			level = level.Add(r.sites[i].Tensor.Tally(n))
		}
	}
	most = level
	for i, e := range r.entries {
		if e.Tensor == nil || e.Tensor.Memory.OnHost() != host {
			continue
		}
		if level = level.Add(change(e)); level.Bytes > most.Bytes {
			most, at = level, i+1
		}
	}
	return most, at
}

// countsAt returns how many buffers of each call site were live after that many entries.
func (r *rebuilder) countsAt(entries int) []int64 {
	counts := make([]int64, len(r.sites))
	for _, site := range r.freedBefore {
		counts[site]++
	}
	for i := range r.ends {
		if e := &r.ends[i]; e.entry < 0 {
			counts[e.site]++
		}
	}
	for i, e := range r.entries[:entries] {
		if site := r.siteOf[i]; site >= 0 {
			counts[site] = max(0, counts[site]+change(e).Count)
		}
	}
	return counts
}

// change returns what an event adds to the live buffers.
func change(e tables.EventEntry) mem.Tally {
	switch walk.Of(e.Action) {
	case walk.Begin:
		return e.Tensor.Tally(1)
	case walk.End:
		return e.Tensor.Tally(-1)
	}
	return mem.Tally{}
}

func (r *rebuilder) result() (*snapshot.Dump, error) {
	first := uint64(len(r.freedBefore))
	for i := range r.ends {
		if e := &r.ends[i]; e.entry < 0 {
			first++
		}
	}
	r.at.Events = first + uint64(len(r.entries))
	r.at.Segments = r.segments
	var byMemory tables.ByMemory
	for _, site := range r.sites {
		if m := site.Tensor.Memory; m != alloc.UnknownMemory {
			byMemory[m] = byMemory[m].Add(site.Tensor.Tally(site.Live))
		}
	}
	r.at.Memory = byMemory.Map()
	if !r.start.IsZero() {
		r.at.Time = time.UnixMicro(r.now).UTC()
	}
	live, err := r.allocations(first)
	if err != nil {
		return nil, err
	}
	*tables.Of(&r.at.Tables) = tables.Tables{
		Stacks: r.table, Sections: r.source.sections, Streams: r.source.streams, Sites: r.sites, Allocations: live, Epoch: r.start, LeftOut: tables.LeftOut{Broken: r.broken},
	}
	for i := range r.pools {
		r.pools[i].Seq += first
	}
	for i := range r.frees {
		r.frees[i].Seq += first
	}
	dump := &snapshot.Dump{
		Snapshot: r.at,
		Devices:  snapshot.Devices{{Device: r.at.Device, Ordinal: r.ordinal, Levels: snapshot.Levels{DriverUsed: -1, DriverTotal: -1, Reserved: r.at.Reserved}}},
		History: tables.WrapHistory(tables.HistoryTables{
			Start: r.start, First: first, Events: r.entries, Stacks: r.table, Sections: r.source.sections, Streams: r.source.streams, Pools: r.pools, Frees: r.frees,
		}),
	}
	if err := lifetimes.Add(tables.Of(&r.at.Tables), tables.OfHistory(&dump.History), r.Use); err != nil {
		return nil, err
	}
	if r.oom != nil {
		dump.Reason, dump.OOM = "out of memory", r.outOfMemory()
	}
	return dump, nil
}

// outOfMemory describes the failure after which the program allocated nothing. Buffers that were freed between it and the
// snapshot count as live.
func (r *rebuilder) outOfMemory() *snapshot.OOM {
	const most = 10 // call sites
	o := &snapshot.OOM{
		Requested: alloc.Bytes(r.oom.size), Free: alloc.Bytes(r.oom.free),
		Total: -1, Inactive: -1, LargestInactive: -1, Untracked: -1, Elsewhere: -1, Others: -1,
	}
	if kind, err := mem.ParseKind(kindNamed(r.oom.category)); err == nil {
		o.Kind = kind
	}
	o.Reserved = r.at.Reserved
	for _, e := range r.entries[r.oomAt:] {
		switch walk.Of(e.Action) {
		case walk.Shrink:
			o.Reserved += e.Allocated
		case walk.Grow:
			o.Reserved -= e.Allocated
		}
	}
	sums := make(map[mem.Frame]mem.Tally)
	for i, n := range r.countsAt(r.oomAt) {
		if n > 0 && !r.sites[i].Tensor.Memory.OnHost() {
			site := r.table.Site(r.sites[i].Stack)
			sums[site] = sums[site].Add(r.sites[i].Tensor.Tally(n))
		}
	}
	for site, live := range sums {
		o.CallSites = append(o.CallSites, mem.CallSiteTally{Frame: site, Tally: live})
	}
	slices.SortFunc(o.CallSites, func(x, y mem.CallSiteTally) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), tables.CompareFrames(x.Frame, y.Frame))
	})
	o.CallSites = o.CallSites[:min(most, len(o.CallSites))]
	return o
}

// allocations returns the live buffers, oldest first. Those from before the first
// event are in the order of their addresses.
func (r *rebuilder) allocations(first uint64) ([]tables.AllocationEntry, error) {
	out := make([]tables.AllocationEntry, 0, len(r.ends))
	seq := uint64(len(r.freedBefore))
	for i := range r.ends {
		e := &r.ends[i]
		a := tables.AllocationEntry{Site: e.site, Ptr: e.Ptr, Allocated: e.Size}
		var err error
		if a.Label, err = r.label(e); err != nil {
			return nil, err
		}
		if e.entry >= 0 {
			a.Seq, a.Since = first+uint64(e.entry), r.entries[e.entry].Since
		} else {
			a.Seq = seq
			seq++
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(x, y tables.AllocationEntry) int { return cmp.Compare(x.Seq, y.Seq) })
	return out, nil
}

// label returns the name of a buffer at the end: the label that Write gave it, the
// user_metadata and compile_context of its allocation, or that it is freed and still used.
func (r *rebuilder) label(e *finalBuffer) (string, error) {
	if e.pending() {
		return pendingLabel, nil
	}
	if label := r.text(e.value, r.key.label); label != "" || e.entry < 0 {
		return label, nil
	}
	note := r.labels[int(e.entry)]
	label := r.metadata(note.metadata)
	if note.compile != "" {
		compile := "compile_context=" + note.compile
		if label != "" {
			compile = label + ", " + compile
		}
		label = truncate(compile)
	}
	return label, r.Use(int64(len(label)))
}

const (
	maxLabel  = 256 // bytes
	maxFields = 8
)

// metadata prints a user_metadata, which is a text or a dict, as "step=3, phase=forward".
func (r *rebuilder) metadata(v plain.Value) string {
	if v.Kind() != plain.Dict {
		return truncate(r.scalar(v))
	}
	var fields []string
	for name, value := range r.Each(v) {
		if len(fields) == maxFields {
			break
		}
		fields = append(fields, truncate(name)+"="+truncate(r.scalar(value)))
	}
	return truncate(strings.Join(fields, ", "))
}

// truncate bounds a label. A character that would be cut in two is left out.
func truncate(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	return strings.ToValidUTF8(s[:maxLabel], "")
}
