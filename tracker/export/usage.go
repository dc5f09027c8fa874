package export

import (
	"strconv"
	"time"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Usage is the memory of one process by call stack: what every format that can
// be read holds. Values that a format lacks are empty or zero.
type Usage struct {
	Name   string          `json:"name"`             // where it comes from, such as a file's name
	Device string          `json:"device,omitempty"` // "Simulated GPU [0]"; "" where rows tell, or if it is not known
	Time   time.Time       `json:"time"`
	Origin snapshot.Origin `json:"origin"`
	Rows   []Row           `json:"rows"`                // device memory
	Host   []Row           `json:"host_rows,omitempty"` // host memory, which counts in no total of the device

	keys []unique.Handle[rowKey] // of a summary, which has no rows. It may be shared with others: do not write
	sums []mem.Tally             // by key; not nil in a summary
}

// Row is the memory of one call stack, kind, shape, dtype and section. Words are those of the
// source: a PyTorch snapshot has kinds that package tracker does not know.
type Row struct {
	Stack    mem.Stack `json:"stack"`     // innermost first; shared: do not write
	CallSite mem.Frame `json:"call_site"` // the line of the user's code in Stack
	Kind     string    `json:"kind"`
	DType    string    `json:"dtype,omitempty"`
	Shape    string    `json:"shape,omitempty"`
	Section  string    `json:"section"`
	Device   string    `json:"device,omitempty"`
	Memory   string    `json:"memory,omitempty"` // the name of an alloc.Memory: "managed"; "" if it is not known
	Stream   string    `json:"stream,omitempty"` // "default stream" or its handle in hexadecimal
	Label    string    `json:"label,omitempty"`  // a label of FromBuffers, or what a reader groups by

	snapshot.Totals
}

// FromSnapshot returns the snapshot's memory by call stack.
func FromSnapshot(s *snapshot.Snapshot) *Usage {
	u := &Usage{Time: s.Time, Origin: s.Origin, Device: Device(s)}
	for site := range s.CallSites() {
		row := rowOf(site.Group, site.Place, u.Device)
		row.Totals = site.Totals
		u.add(row)
	}
	return u
}

// FromDump returns the memory of all devices of a dump by call stack, with a
// row for the call stacks that a dump has left out.
func FromDump(r *snapshot.Dump) *Usage {
	u := FromSnapshot(r.Snapshot)
	if rest := tables.Of(&r.Snapshot.Tables).LeftOut.Unsited; rest != (tables.Totals{}) {
		u.Rows = append(u.Rows, Row{Device: u.Device, Totals: snapshot.Totals(rest)})
	}
	for _, other := range r.Others {
		u.Device = ""
		its := FromDump(other)
		u.Rows, u.Host = append(u.Rows, its.Rows...), append(u.Host, its.Host...)
	}
	return u
}

// Device names the snapshot's device: "Simulated GPU [0]".
func Device(s *snapshot.Snapshot) string { return s.Device + " [" + strconv.Itoa(s.Ordinal) + "]" }
