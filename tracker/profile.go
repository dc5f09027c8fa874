package tracker

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Profile is what the ended sections came to, by path: a copy, which does not
// follow the tracker. It belongs to who asked for it, and is for one goroutine at a time.
type Profile struct {
	rows []ProfileRow // as the tree has them
	by   Column
}

// ProfileRow is the ended sections of one path. Sums and levels include the
// sections' parts.
type ProfileRow struct {
	Path       string        `json:"path"`
	Site       Frame         `json:"site"`  // who opened the last
	Calls      int64         `json:"calls"` // 0 if there are only parts of it
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"` // -1 if it is not known
	RSS        alloc.Bytes   `json:"rss_bytes"`      // resident set, consumed; 0 if it is not known
	Heap       alloc.Bytes   `json:"heap_bytes"`     // Go's heap, consumed; 0 if it is not known

	Allocated Tally       `json:"allocated"`
	Freed     Tally       `json:"freed"`
	Peak      alloc.Bytes `json:"peak_bytes"`     // the highest of SectionData.GPU.Peak
	OwnPeak   alloc.Bytes `json:"own_peak_bytes"` // the highest of SectionData.OwnPeak
	Live      Tally       `json:"live"`           // allocated there and alive now

	Layer              // as Describe or the Estimator has it
	Estimate *Estimate `json:"estimate,omitempty"`
}

// Kept returns what a call allocated and did not free, on average.
func (r *ProfileRow) Kept() alloc.Bytes {
	if r.Calls == 0 {
		return 0
	}
	return (r.Allocated.Bytes - r.Freed.Bytes) / alloc.Bytes(r.Calls)
}

// Difference returns how much more was measured than was expected; 0 without
// an Estimate.
func (r *ProfileRow) Difference() alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.measured(r.Estimate.Of) - r.Estimate.Bytes
}

// Profile returns what the sections that have ended came to, by path, in the
// order of a tree. It waits until the device has done their work.
func (t *MemTracker) Profile() *Profile {
	if t.closed.Load() {
		t.usedAfterClose("Profile")
	}
	t.readDeviceTimes(0)
	t.mu.Lock()
	names, stats := t.sections.paths.names, slices.Clone(t.sections.stats)
	t.mu.Unlock()

	tree := profileTree{"": new(profileNode)}
	for id, s := range stats {
		if s.calls > 0 || !s.live.IsZero() {
			tree.at(names[id]).set(s, t.stacks)
		}
	}
	p := &Profile{}
	for _, node := range tree[""].parts {
		p.rows = node.appendTo(p.rows)
	}
	return p
}

// profileTree holds the nodes by path; that of "" is the root.
type profileTree map[string]*profileNode

// profileNode is a row and those of its parts, in the order in which they were
// first seen.
type profileNode struct {
	row   ProfileRow
	parts []*profileNode
}

// at returns the node of a path, making it and those above it.
func (t profileTree) at(path string) *profileNode {
	if n := t[path]; n != nil {
		return n
	}
	n := &profileNode{row: ProfileRow{Path: path, DeviceTime: -1}}
	t[path] = n
	above := t.at(path[:max(0, strings.LastIndexByte(path, '/'))])
	above.parts = append(above.parts, n)
	return n
}

func (n *profileNode) set(s pathStats, stacks *stacks) {
	r := &n.row
	r.Site, r.Calls, r.Time = stacks.site(s.stack), s.calls, s.time
	r.RSS, r.Heap = s.rss, s.heap
	r.Allocated, r.Freed, r.Peak, r.OwnPeak, r.Live = s.allocated, s.freed, s.peak, s.ownPeak, s.live
	if s.timed > 0 {
		r.DeviceTime = s.deviceTime
	}
	if s.layer != nil {
		r.Layer = *s.layer
	}
}

// appendTo appends the rows from here down, having added up what is live.
func (n *profileNode) appendTo(rows []ProfileRow) []ProfileRow {
	at := len(rows)
	rows = append(rows, n.row)
	for _, c := range n.parts {
		first := len(rows)
		rows = c.appendTo(rows)
		rows[at].Live = rows[at].Live.Add(rows[first].Live)
	}
	return rows
}

// Attach sets the Estimate of the rows that e knows; what Describe did not say of
// their inputs, FLOPs and parameters is taken from it.
func (p *Profile) Attach(e Estimator) {
	for i := range p.rows {
		r := &p.rows[i]
		found, ok := e.Estimate(r.Path)
		if !ok {
			continue
		}
		r.Estimate = &found
		if r.Inputs == nil && r.FLOPs == 0 && r.Params == 0 {
			r.Layer = found.Layer
		}
	}
}

// Rows iterates over the rows in their order: the tree's, or that of Sort.
func (p *Profile) Rows() iter.Seq[ProfileRow] { return slices.Values(p.sorted()) }

// Sort has Rows, Table and the JSON form go by a column: larger numbers first, texts in the
// order of the alphabet, equal ones as in the tree.
func (p *Profile) Sort(by Column) { p.by = by }

func (p *Profile) sorted() []ProfileRow {
	rows := slices.Clone(p.rows)
	if p.by < Column(len(columns)) && columns[p.by].compare != nil {
		slices.SortStableFunc(rows, func(x, y ProfileRow) int { return columns[p.by].compare(&x, &y) })
	}
	return rows
}

// The schema of a profile's JSON form.
const (
	ProfileSchema  = "gpumemtrack.profile"
	ProfileVersion = 1
)

// MarshalJSON writes the rows in their order, with the schema and its version.
func (p *Profile) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Schema  string       `json:"schema"`
		Version int          `json:"version"`
		Rows    []ProfileRow `json:"rows"`
	}{ProfileSchema, ProfileVersion, p.sorted()})
}
