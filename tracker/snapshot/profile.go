package snapshot

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
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

// Attach sets the Estimate of the rows that e has one for, and takes their inputs, FLOPs and
// parameters from it where Describe did not set them.
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

// Sort orders Rows, Table and the JSON form by a column: larger numbers first, texts
// alphabetically, equal ones as in the tree.
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
	if err := checkSchema(in.Schema, in.Version, ProfileSchema, ProfileVersion); err != nil {
		return fmt.Errorf("read profile: %w", err)
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
	}{ProfileSchema, ProfileVersion, p.sorted()})
}
