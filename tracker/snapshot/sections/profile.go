package sections

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Profile is the sections that have ended, added up by path, and sorted as a tree: a section's
// parts follow it. It is a copy: later sections do not change it.
type Profile []Row

// SetEstimates sets the Estimate of the rows whose path is a key of e. Inputs, FLOPs and parameters
// are taken from it, unless the row has some. The error names an Estimate whose path was not measured.
func (p Profile) SetEstimates(e map[string]Estimate) error {
	for path, expected := range e {
		if !slices.Contains([]string{"", byAllocated, byKept, byPeak, byOwnPeak, byLive}, expected.Of) {
			return fmt.Errorf("estimate for %q: of %q: want one of %s, %s, %s, %s, %s", path, expected.Of, byAllocated, byKept, byPeak, byOwnPeak, byLive)
		}
	}
	for i := range p {
		r := &p[i]
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
	return nil
}

// Sorted returns a copy, ordered by a column of its table: larger numbers first, texts alphabetically, equal
// ones as they were. The columns are "path", "calls", "time", "gpu-time", "cpu-time", "rss", "heap", "allocated",
// "kept", "estimate", "difference", "peak", "own-peak", "live", "flops", "params", "inputs" and "line"; "tree" keeps
// the order. The error lists them.
func (p Profile) Sorted(by string) (Profile, error) {
	if err := checkColumn(by); err != nil {
		return nil, err
	}
	rows := slices.Clone(p)
	if i := slices.IndexFunc(columns, func(c column) bool { return c.name == by }); i >= 0 {
		slices.SortStableFunc(rows, func(x, y Row) int { return columns[i].compare(&x, &y) })
	}
	return rows, nil
}

type profileJSON struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Rows    []Row  `json:"rows"`
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Profile) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	var in profileJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.ProfileSchema, jsonstream.ProfileVersion); err != nil {
		return fmt.Errorf("read profile: %w", err)
	}
	for i, r := range in.Rows {
		if r.Estimate == nil {
			continue
		}
		if err := checkColumn(r.Estimate.Of); err != nil {
			return fmt.Errorf("read profile: row %d: %w", i, err)
		}
	}
	*p = append(Profile{}, in.Rows...) // not nil, because nil means unknown
	return nil
}

// MarshalJSON writes the rows in their order, with the schema and its version.
func (p Profile) MarshalJSON() ([]byte, error) {
	out := profileJSON{jsonstream.ProfileSchema, jsonstream.ProfileVersion, nil}
	if len(p) > 0 {
		out.Rows = p
	}
	return json.Marshal(out)
}

// Row is all ended sections of one path. Calls, times, RSS, Heap, Allocated and Freed
// are sums over the calls. Peak and OwnPeak are maxima. Live is the present level. Sums and
// levels include the sections' parts.
type Row struct {
	Path       string        `json:"path"`
	CallSite   mem.Frame     `json:"call_site"`       // who opened the last
	Stack      mem.Stack     `json:"stack,omitempty"` // its whole call stack, innermost first; shared: do not write
	Calls      int64         `json:"calls"`           // 0 if only parts of it are known
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"` // -1 if it is not known
	CPUTime    time.Duration `json:"cpu_time_ns"`    // of the process, see Data; -1 if unknown
	RSS        *alloc.Bytes  `json:"rss_bytes"`      // resident set, consumed; nil if it is not known
	Heap       *alloc.Bytes  `json:"heap_bytes"`     // Go's heap, consumed; nil if it is not known

	Allocated mem.Tally   `json:"allocated"`
	Freed     mem.Tally   `json:"freed"`
	Peak      alloc.Bytes `json:"peak_bytes"`     // the highest of Data.GPU.Peak
	OwnPeak   alloc.Bytes `json:"own_peak_bytes"` // the highest of Data.OwnPeak
	Live      mem.Tally   `json:"live"`           // allocated there and alive now

	Layer              // from the Estimate
	Estimate *Estimate `json:"estimate,omitempty"`
}

// rowJSON is the JSON form of a Row.
type rowJSON struct {
	plainRow
	DeviceTime jsonstream.Amount `json:"device_time_ns"`
	CPUTime    jsonstream.Amount `json:"cpu_time_ns"`
}

type plainRow Row

// MarshalJSON writes null for an unknown value.
func (r Row) MarshalJSON() ([]byte, error) {
	return json.Marshal(rowJSON{plainRow(r), jsonstream.Amount(r.DeviceTime), jsonstream.Amount(r.CPUTime)})
}

// UnmarshalJSON reads what MarshalJSON wrote. Of earlier versions, a time that is not there is unknown.
func (r *Row) UnmarshalJSON(text []byte) error {
	in := rowJSON{CPUTime: -1}
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	*r = Row(in.plainRow)
	r.DeviceTime, r.CPUTime = time.Duration(in.DeviceTime), time.Duration(in.CPUTime)
	return nil
}

// Kept returns what an average call allocated minus what it freed, in bytes.
func (r *Row) Kept() alloc.Bytes {
	if r.Calls == 0 {
		return 0
	}
	return (r.Allocated.Bytes - r.Freed.Bytes) / alloc.Bytes(r.Calls)
}

// Difference returns the measured amount minus the estimated one; 0 without an Estimate.
func (r *Row) Difference() alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.measured(r.Estimate.Of) - r.Estimate.Bytes
}

// measured is the amount of a call that a column shows.
func (r *Row) measured(of string) alloc.Bytes {
	switch of {
	case byAllocated:
		return r.Allocated.Bytes / alloc.Bytes(max(1, r.Calls))
	case byKept:
		return r.Kept()
	case byPeak:
		return r.Peak
	case byOwnPeak:
		return r.OwnPeak
	case byLive:
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
//	sections.Estimate{
//		Layer: sections.Layer{Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params},
//		Of:    "allocated", Bytes: row.Allocated,
//	}
type Estimate struct {
	Layer
	// Of says which measured amount it is an estimate of: "allocated", "kept", "peak", "own-peak"
	// or "live".
	Of    string      `json:"of"`
	Bytes alloc.Bytes `json:"bytes"`
}
