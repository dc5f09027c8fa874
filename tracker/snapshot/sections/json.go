package sections

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

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
		if r.Estimate.Of == "kept" { // in files from before the first release
			r.Estimate.Of = byRetained
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

// The JSON forms of Data and Row point to its fields, to write them and to read them. A
// null leaves a field as it was.

type dataJSON struct {
	Path       *string            `json:"path"`
	CallSite   *mem.Frame         `json:"call_site"`
	Stack      mem.Stack          `json:"stack,omitempty"`
	Start      *time.Time         `json:"start"`
	Incomplete string             `json:"incomplete,omitempty"`
	Time       *time.Duration     `json:"time_ns"`
	GPU        *MemoryUse         `json:"gpu"`
	RSS        *MemoryUse         `json:"rss"`
	Heap       *MemoryUse         `json:"heap"`
	Allocated  *mem.Tally         `json:"allocated"`
	Freed      *mem.Tally         `json:"freed"`
	SelfPeak   *alloc.Bytes       `json:"self_peak_bytes"`
	DeviceTime *jsonstream.Amount `json:"device_time_ns"`
	CPUTime    *jsonstream.Amount `json:"cpu_time_ns"`
}

func (d *Data) json() dataJSON {
	return dataJSON{
		&d.Path, &d.CallSite, d.Stack, &d.Start, d.Incomplete, &d.Time, &d.GPU, &d.RSS, &d.Heap, &d.Allocated, &d.Freed, &d.SelfPeak,
		(*jsonstream.Amount)(&d.DeviceTime), (*jsonstream.Amount)(&d.CPUTime),
	}
}

// MarshalJSON writes null for an unknown value.
func (d Data) MarshalJSON() ([]byte, error) { return json.Marshal(d.json()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *Data) UnmarshalJSON(text []byte) error {
	read := Data{Measured: Measured{DeviceTime: -1, CPUTime: -1}}
	in := read.json()
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	read.Stack, read.Incomplete = in.Stack, in.Incomplete
	*d = read
	return nil
}

type rowJSON struct {
	Path       *string            `json:"path"`
	CallSite   *mem.Frame         `json:"call_site"`
	Stack      mem.Stack          `json:"stack,omitempty"`
	Calls      *int64             `json:"calls"`
	Time       *time.Duration     `json:"time_ns"`
	RSS        **alloc.Bytes      `json:"rss_bytes"`
	Heap       **alloc.Bytes      `json:"heap_bytes"`
	Allocated  *mem.Tally         `json:"allocated"`
	Freed      *mem.Tally         `json:"freed"`
	Peak       *alloc.Bytes       `json:"peak_bytes"`
	SelfPeak   *alloc.Bytes       `json:"self_peak_bytes"`
	Live       *mem.Tally         `json:"live"`
	Inputs     []alloc.Shape      `json:"inputs,omitempty"` // the Estimate's
	FLOPs      int64              `json:"flops,omitempty"`
	Params     int64              `json:"params,omitempty"`
	Estimate   *Estimate          `json:"estimate,omitempty"`
	DeviceTime *jsonstream.Amount `json:"device_time_ns"`
	CPUTime    *jsonstream.Amount `json:"cpu_time_ns"`
}

func (r *Row) json() rowJSON {
	of := r.estimate()
	return rowJSON{
		&r.Path, &r.CallSite, r.Stack, &r.Calls, &r.Time, &r.RSS, &r.Heap, &r.Allocated, &r.Freed, &r.Peak, &r.SelfPeak, &r.Live,
		of.Inputs, of.FLOPs, of.Params, r.Estimate, (*jsonstream.Amount)(&r.DeviceTime), (*jsonstream.Amount)(&r.CPUTime),
	}
}

// MarshalJSON writes null for an unknown value.
func (r Row) MarshalJSON() ([]byte, error) { return json.Marshal(r.json()) }

// UnmarshalJSON reads what MarshalJSON wrote. A time that is not there is unknown.
func (r *Row) UnmarshalJSON(text []byte) error {
	read := Row{Measured: Measured{DeviceTime: -1, CPUTime: -1}}
	in := read.json()
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	read.Stack, read.Estimate = in.Stack, in.Estimate
	*r = read
	return nil
}

// useJSON is the JSON form of MemoryUse.
type useJSON struct {
	Before     jsonstream.Amount `json:"before_bytes"`
	Used       jsonstream.Amount `json:"used_bytes"`
	Peak       jsonstream.Amount `json:"peak_bytes"`
	PeakAtMost bool              `json:"peak_at_most,omitempty"`
}

// MarshalJSON writes null for an unknown value.
func (u MemoryUse) MarshalJSON() ([]byte, error) {
	return json.Marshal(useJSON{jsonstream.Amount(u.Before), jsonstream.Amount(u.Used), jsonstream.Amount(u.Peak), u.PeakAtMost})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (u *MemoryUse) UnmarshalJSON(text []byte) error {
	var in useJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	*u = MemoryUse{alloc.Bytes(in.Before), alloc.Bytes(in.Used), alloc.Bytes(in.Peak), in.PeakAtMost}
	return nil
}
