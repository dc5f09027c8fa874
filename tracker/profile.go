package tracker

import (
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// profile is MemTracker.Profile without waiting for the device.
func (st *sectionTable) profile() sections.Profile {
	t := st.t
	t.mu.Lock()
	names, stats := st.paths.names, st.stats.View()
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

// pathStats is the sum of all ended sections with one path.
type pathStats struct {
	calls          int64
	stack          tables.StackID // of the call that began the last one
	time           time.Duration
	deviceTime     time.Duration
	timed          int64 // calls with a device time
	cpuTime        knownSum[time.Duration]
	allocated      mem.Tally
	freed          mem.Tally
	peak, selfPeak alloc.Bytes           // the highest of all
	rss, heap      knownSum[alloc.Bytes] // consumed
	live           mem.Tally             // buffers allocated in the path itself, alive now
}

func (p *pathStats) row(path string, site mem.Frame, stack mem.Stack) sections.Row {
	r := sections.Row{
		Measured: sections.Measured{
			Path: path, CallSite: site, Stack: stack, Time: p.time, DeviceTime: -1, CPUTime: -1,
			Allocated: p.allocated, Freed: p.freed, SelfPeak: p.selfPeak,
		},
		Calls: p.calls, RSS: p.rss.get(), Heap: p.heap.get(), Peak: p.peak, Live: p.live,
	}
	if p.timed > 0 {
		r.DeviceTime = p.deviceTime
	}
	if p.cpuTime.any {
		r.CPUTime = p.cpuTime.sum
	}
	return r
}

// add counts a section that has ended. The sums stop at the bounds of 64 bits.
func (p *pathStats) add(s *section) {
	m := &s.final
	p.calls++
	p.stack = s.stack
	p.time = saturate.Add(p.time, max(0, m.to.at-s.from.at)) // a clock may jump
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		p.cpuTime.add(max(0, m.to.cpu-s.from.cpu))
	}
	p.allocated = p.allocated.Add(m.own.allocated)
	p.freed = p.freed.Add(m.own.freed)
	p.peak = max(p.peak, m.peak.gpu)
	p.selfPeak = max(p.selfPeak, m.own.peak)
	if s.from.host.Resident >= 0 && m.to.host.Resident >= 0 {
		p.rss.add(m.to.host.Resident - s.from.host.Resident)
	}
	if s.from.host.Heap >= 0 && m.to.host.Heap >= 0 {
		p.heap.add(m.to.host.Heap - s.from.host.Heap)
	}
}

func (p *pathStats) addDeviceTime(d time.Duration) {
	if d >= 0 {
		p.deviceTime = saturate.Add(p.deviceTime, d)
		p.timed++
	}
}

// knownSum is a sum that leaves out unknown values.
type knownSum[T ~int64] struct {
	sum T
	any bool
}

func (k *knownSum[T]) add(n T) { k.sum, k.any = saturate.Add(k.sum, n), true }

// get returns nil if nothing is known.
func (k knownSum[T]) get() *T {
	if !k.any {
		return nil
	}
	return &k.sum
}

// count adds buffers to a sum.
func count(sum *mem.Tally, buffers int64, bytes alloc.Bytes) {
	*sum = sum.Add(mem.Tally{Count: buffers, Bytes: bytes})
}

// paths numbers the paths of sections. Numbers are not given back.
type paths struct {
	names []string // only ever appended to, so that a copy of the slice stays good
	ids   map[string]uint32
}

const (
	noPath    uint32 = iota // outside of all sections
	otherPath               // beyond the bounds

	maxPaths      = 1 << 14
	maxPathLength = 1 << 10
)

func newPaths() paths {
	p := paths{ids: make(map[string]uint32)}
	p.add("")
	p.add("other")
	return p
}

func (p *paths) add(path string) uint32 {
	id := uint32(len(p.names))
	p.names = append(p.names, path)
	p.ids[path] = id
	return id
}

// at returns the number of a path. Paths that are too many or too long are one.
func (p *paths) at(path string) uint32 {
	id, ok := p.ids[path]
	switch {
	case ok:
		return id
	case len(p.names) >= maxPaths || len(path) > maxPathLength:
		return otherPath
	}
	return p.add(path)
}
