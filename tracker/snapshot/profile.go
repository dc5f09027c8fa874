package snapshot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Profile is the sections that have ended, added up by path. It is a copy, and does not follow
// the tracker. It is for one goroutine at a time.
type Profile struct {
	rows []ProfileRow // as the tree has them
	by   Column
}

// NewProfile returns the profile of rows with different paths, in the order in which the
// sections were first seen. Live counts what was allocated in the section itself; NewProfile
// adds that of its parts. A section of which there are only parts gets a row.
func NewProfile(rows []ProfileRow) *Profile {
	tree := profileTree{"": new(profileNode)}
	for _, r := range rows {
		tree.at(r.Path).row = r
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

// Attach sets the Estimate of the rows whose path e has, and takes their inputs, FLOPs and
// parameters from it where Describe did not set them.
func (p *Profile) Attach(e map[string]Estimate) {
	for i := range p.rows {
		r := &p.rows[i]
		found, ok := e[r.Path]
		if !ok {
			continue
		}
		found.Of = cmp.Or(found.Of, byTree)
		r.Estimate = &found
		if r.Inputs == nil && r.FLOPs == 0 && r.Params == 0 {
			r.Layer = found.Layer
		}
	}
}

// Rows iterates over the rows in their order: the tree's, or that of Sort.
func (p *Profile) Rows() iter.Seq[ProfileRow] { return slices.Values(p.sorted()) }

// Sort orders Rows, Table and the JSON form by a column: larger numbers first, texts
// alphabetically, equal ones as in the tree. The error lists the columns.
func (p *Profile) Sort(by Column) error {
	if err := by.check(); err != nil {
		return err
	}
	p.by = by
	return nil
}

func (p *Profile) sorted() []ProfileRow {
	rows := slices.Clone(p.rows)
	if i := slices.IndexFunc(columns, func(c column) bool { return c.name == p.by }); i >= 0 {
		slices.SortStableFunc(rows, func(x, y ProfileRow) int { return columns[i].compare(&x, &y) })
	}
	return rows
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Profile) UnmarshalJSON(text []byte) error {
	var in struct {
		Schema  string       `json:"schema"`
		Version int          `json:"version"`
		Rows    []ProfileRow `json:"rows"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.ProfileSchema, jsonstream.ProfileVersion); err != nil {
		return fmt.Errorf("read profile: %w", err)
	}
	for i, r := range in.Rows {
		if r.Estimate == nil {
			continue
		}
		if err := r.Estimate.Of.check(); err != nil {
			return fmt.Errorf("read profile: row %d: %w", i, err)
		}
	}
	*p = Profile{rows: in.Rows}
	return nil
}

// MarshalJSON writes the rows in their order, with the schema and its version.
func (p *Profile) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Schema  string       `json:"schema"`
		Version int          `json:"version"`
		Rows    []ProfileRow `json:"rows"`
	}{jsonstream.ProfileSchema, jsonstream.ProfileVersion, p.sorted()})
}

// ProfileRow is all ended sections of one path. Calls, times, RSS, Heap, Allocated and Freed
// are sums over the calls. Peak and OwnPeak are maxima. Live is the present level. Sums and
// levels include the sections' parts.
type ProfileRow struct {
	Path       string        `json:"path"`
	Site       mem.Frame     `json:"site"`            // who opened the last
	Stack      mem.Stack     `json:"stack,omitempty"` // its whole call stack, innermost first; shared: do not write
	Calls      int64         `json:"calls"`           // 0 if there are only parts of it
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"`        // -1 if it is not known
	CPUTime    time.Duration `json:"cpu_time_ns,omitempty"` // of the process, see SectionData; 0 if it is not known
	RSS        alloc.Bytes   `json:"rss_bytes"`             // resident set, consumed; 0 if it is not known
	Heap       alloc.Bytes   `json:"heap_bytes"`            // Go's heap, consumed; 0 if it is not known

	Allocated mem.Tally   `json:"allocated"`
	Freed     mem.Tally   `json:"freed"`
	Peak      alloc.Bytes `json:"peak_bytes"`     // the highest of SectionData.GPU.Peak
	OwnPeak   alloc.Bytes `json:"own_peak_bytes"` // the highest of SectionData.OwnPeak
	Live      mem.Tally   `json:"live"`           // allocated there and alive now

	Layer              // as Describe or the Estimate has it
	Estimate *Estimate `json:"estimate,omitempty"`
}

// Kept returns the average of what a call allocated minus what it freed.
func (r *ProfileRow) Kept() alloc.Bytes {
	if r.Calls == 0 {
		return 0
	}
	return (r.Allocated.Bytes - r.Freed.Bytes) / alloc.Bytes(r.Calls)
}

// Difference returns the measured amount minus the estimated one; 0 without an Estimate.
func (r *ProfileRow) Difference() alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.measured(r.Estimate.Of) - r.Estimate.Bytes
}

// measured is the amount of a call that a column shows.
func (r *ProfileRow) measured(of Column) alloc.Bytes {
	switch of {
	case ByAllocated:
		return r.Allocated.Bytes / alloc.Bytes(max(1, r.Calls))
	case ByKept:
		return r.Kept()
	case ByPeak:
		return r.Peak
	case ByOwnPeak:
		return r.OwnPeak
	case ByLive:
		return r.Live.Bytes
	}
	return 0
}

// Layer describes the work that one call of a section does. What is not known
// is zero.
type Layer struct {
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	FLOPs  int64         `json:"flops,omitempty"` // floating-point operations
	Params int64         `json:"params,omitempty"`
}

// Estimate is what is expected of one call of a section. Of a layer in a report of
// package estimate it is
//
//	snapshot.Estimate{
//		Layer: snapshot.Layer{Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params},
//		Of:    snapshot.ByAllocated, Bytes: row.Allocated,
//	}
type Estimate struct {
	Layer
	// Of says which measured amount it is an estimate of: ByAllocated, ByKept, ByPeak, ByOwnPeak
	// or ByLive.
	Of    Column      `json:"of"`
	Bytes alloc.Bytes `json:"bytes"`
}
