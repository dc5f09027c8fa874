package tracker

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// Profile returns the sections that have ended, added up by path and sorted as a tree. It waits
// until the device has done their work.
func (t *MemTracker) Profile() sections.Profile {
	if t.closed.Load() {
		t.usedAfterClose("Profile")
	}
	t.readDeviceTimes(0)
	return t.profile()
}

// profile is Profile without waiting.
func (t *MemTracker) profile() sections.Profile {
	t.mu.Lock()
	names, stats := t.sections.paths.names, t.sections.stats.View()
	t.mu.Unlock()

	var rows []sections.Row
	stats.Read(t.mu, func(first slab.ID, paths []pathStats) {
		for i, s := range paths {
			if s.calls > 0 || !s.live.IsZero() {
				rows = append(rows, s.row(names[int(first)+i], t.stacks.Site(s.stack), t.stacks.Stack(s.stack)))
			}
		}
	})
	return profileOf(rows)
}

// profileOf returns the profile of rows with different paths, in the order in which the sections
// were first seen. In a row, Live counts the section's own allocations; profileOf adds those of its
// parts. A section known only by its parts gets a row too.
func profileOf(rows []sections.Row) sections.Profile {
	tree := profileTree{"": new(profileNode)}
	for _, r := range rows {
		tree.at(r.Path).row = r
	}
	p := make(sections.Profile, 0, len(tree)-1)
	for _, node := range tree[""].parts {
		p = node.appendTo(p)
	}
	return p
}

// profileTree has the nodes by path; "" is the root.
type profileTree map[string]*profileNode

// profileNode is a row, and the nodes of its parts in the order in which they were first seen.
type profileNode struct {
	row   sections.Row
	parts []*profileNode
}

// at returns the node of a path, making it and those above it.
func (t profileTree) at(path string) *profileNode {
	if n := t[path]; n != nil {
		return n
	}
	n := &profileNode{row: sections.Row{Measured: sections.Measured{Path: path, DeviceTime: -1}}}
	t[path] = n
	above := t.at(path[:max(0, strings.LastIndexByte(path, '/'))])
	above.parts = append(above.parts, n)
	return n
}

// appendTo appends the rows from here down, having added up what is live.
func (n *profileNode) appendTo(rows sections.Profile) sections.Profile {
	at := len(rows)
	rows = append(rows, n.row)
	for _, c := range n.parts {
		first := len(rows)
		rows = c.appendTo(rows)
		rows[at].Live = rows[at].Live.Add(rows[first].Live)
	}
	return rows
}

func (s *pathStats) row(path string, site mem.Frame, stack mem.Stack) sections.Row {
	r := sections.Row{
		Measured: sections.Measured{
			Path: path, CallSite: site, Stack: stack, Time: s.time, DeviceTime: -1, CPUTime: -1,
			Allocated: s.allocated, Freed: s.freed, OwnPeak: s.ownPeak,
		},
		Calls: s.calls, RSS: s.rss.get(), Heap: s.heap.get(), Peak: s.peak, Live: s.live,
	}
	if s.timed > 0 {
		r.DeviceTime = s.deviceTime
	}
	if s.cpuTime.any {
		r.CPUTime = s.cpuTime.sum
	}
	return r
}

// String prints what the section measured, or what it has measured so far: see sections.Data. It does not
// wait for the device.
func (s *Section) String() string {
	if s.tracker == nil {
		return "no section: a MemTracker begins them"
	}
	data, _ := s.data()
	return data.String()
}

// Data returns what the section measured, or what it has measured so far if it is open. For an
// ended section it waits until the device has done the work that was queued in it.
func (s *Section) Data() sections.Data {
	data, timed := s.data()
	if timed {
		data.DeviceTime = s.device.read()
	}
	return data
}

// data is Data without the device's time. timed reports whether that can be read.
func (s *Section) data() (data sections.Data, timed bool) {
	m, done := s.completed()
	if !done {
		m = s.soFar()
	}
	data = sections.Data{
		Measured: sections.Measured{
			Path: s.path, CallSite: s.tracker.stacks.Site(s.stack), Stack: s.tracker.stacks.Stack(s.stack),
			Time: max(0, m.to.at-s.from.at), CPUTime: -1, DeviceTime: -1,
			Allocated: m.own.allocated, Freed: m.own.freed, OwnPeak: m.own.peak,
		},
		Start: s.tracker.start.Add(s.from.at), Incomplete: m.incomplete,
		GPU:  sections.MemoryUse{Before: s.from.gpu, Used: m.to.gpu, Peak: m.peak.gpu},
		RSS:  residentUse(s.from.host, m.to.host, m.peak.host),
		Heap: sections.MemoryUse{Before: s.from.host.Heap, Used: m.to.host.Heap, Peak: -1},
	}
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		data.CPUTime = max(0, m.to.cpu-s.from.cpu)
	}
	return data, m.timed
}

// soFar measures an open section.
func (s *Section) soFar() measures {
	t := s.tracker
	now := moment{cpu: t.sections.host.CPU(), host: t.sections.host.Read()}
	now.at = t.now()
	t.lockSections()
	defer t.unlockSections()
	if s.done { // by now
		return s.final
	}
	now.gpu = t.ledger.Current.Bytes
	return measures{to: now, peak: s.peak(), own: s.own}
}

// residentUse returns the use between two readings. mark is the peak since the section began, if it
// is known. Without it, the process's peak is the section's if it rose in between; otherwise it is
// only an upper bound.
func residentUse(from, to host.Memory, mark alloc.Bytes) sections.MemoryUse {
	use := sections.MemoryUse{Before: from.Resident, Used: to.Resident, Peak: -1}
	switch {
	case mark > 0 && to.Resident >= 0:
		use.Peak = max(mark, from.Resident, to.Resident)
	case from.Peak < 0 || to.Peak < 0:
	case to.Peak > from.Peak:
		use.Peak = to.Peak
	default:
		use.Peak, use.PeakAtMost = from.Peak, true // the kernel's figure may fall a little
	}
	return use
}
