package export

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
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

	deferred *Deferred // makes the rows; nil if they are there

	keys []unique.Handle[rowKey] // of a summary, which has no rows. It may be shared with others: do not write
	sums []mem.Tally             // by key; not nil in a summary
}

// Deferred makes the rows of a usage when they are first needed: a recording can have a million.
type Deferred struct {
	// Each yields the rows of device memory or of the host's without their stacks, in any order. Several of them may be one
	// row of the usage.
	Each func(host bool) iter.Seq[*Row]
	// Rows returns the rows.
	Rows func() (device, host []Row)
}

// Defer returns a usage without rows, which Fill adds. The other fields are those of u.
func Defer(u Usage, rows Deferred) *Usage {
	u.Rows, u.Host, u.deferred = nil, nil, &rows
	return &u
}

// Fill adds the rows of a usage that was read without them; it does nothing to any other. It returns u.
func (u *Usage) Fill() *Usage {
	if d := u.deferred; d != nil {
		u.deferred = nil
		u.Rows, u.Host = d.Rows()
	}
	return u
}

// Each iterates over the rows of device memory or of the host's. For a usage without rows, they have no stacks, are in any
// order, and several of them may be one row.
func (u *Usage) Each(host bool) iter.Seq[*Row] {
	if u.deferred != nil {
		return u.deferred.Each(host)
	}
	rows := u.Rows
	if host {
		rows = u.Host
	}
	return func(yield func(*Row) bool) {
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
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
		more := FromDump(other)
		u.Rows, u.Host = append(u.Rows, more.Rows...), append(u.Host, more.Host...)
	}
	return u
}

// DeferDump returns what FromDump does, without rows until they are needed.
func DeferDump(d *snapshot.Dump) *Usage {
	u := Usage{Time: d.Snapshot.Time, Origin: d.Snapshot.Origin}
	if len(d.Others) == 0 {
		u.Device = Device(d.Snapshot)
	}
	return Defer(u, Deferred{
		Each: func(host bool) iter.Seq[*Row] { return func(yield func(*Row) bool) { eachOf(d, host, yield) } },
		Rows: func() (device, host []Row) {
			filled := FromDump(d)
			return filled.Rows, filled.Host
		},
	})
}

// eachOf yields the rows of a dump and its others, as Deferred.Each does. It reports whether to go on.
func eachOf(d *snapshot.Dump, host bool, yield func(*Row) bool) bool {
	device := Device(d.Snapshot)
	for site := range d.Snapshot.Sums() {
		row := rowOf(site.Group, site.Place, device)
		row.Totals = site.Totals
		if labels.OnHost(row.Memory) == host && !yield(&row) {
			return false
		}
	}
	if rest := tables.Of(&d.Snapshot.Tables).LeftOut.Unsited; !host && rest != (tables.Totals{}) {
		if !yield(&Row{Device: device, Totals: snapshot.Totals(rest)}) {
			return false
		}
	}
	for _, other := range d.Others {
		if !eachOf(other, host, yield) {
			return false
		}
	}
	return true
}

// Device names the snapshot's device: "Simulated GPU [0]".
func Device(s *snapshot.Snapshot) string { return s.Device + " [" + strconv.Itoa(s.Ordinal) + "]" }

// FromBuffers returns the live buffers that are older than age, by call stack and label. Only a
// list of single buffers has this. An age of 0 takes all buffers. The rows have no Peak and no
// Total. It is an error if the snapshot does not list all of its buffers. With an age it is also an
// error if the snapshot has no times, or too short a history to know the ages of its oldest
// buffers.
func FromBuffers(s *snapshot.Snapshot, age time.Duration) (*Usage, error) {
	t := tables.Of(&s.Tables)
	switch {
	case int64(len(t.Allocations)) < s.Live.Count:
		return nil, errors.New("it does not list all of its live buffers one by one, as dumps do that were not cut short, and snapshots of PyTorch")
	case age > 0 && s.Time.IsZero():
		return nil, errors.New("its buffers have no times, so their ages are not known")
	}
	type place struct {
		site  int32
		label string
	}
	u := &Usage{Time: s.Time, Origin: s.Origin, Device: Device(s)}
	rows := make(map[place]*Row)
	var order []*Row
	i := 0
	for a := range s.Allocations() {
		entry := t.Allocations[i]
		i++
		if old := s.Time.Sub(a.Time); age > 0 && old <= age {
			if entry.Since == 0 { // it may be from before the history
				return nil, fmt.Errorf("its history goes back for %v, so it does not know which buffers are older than %v", old.Round(time.Millisecond), age)
			}
			continue
		}
		at := place{entry.Site, a.Label}
		if rows[at] == nil {
			row := rowOf(a.Group, a.Place, u.Device)
			row.Label = a.Label
			rows[at] = &row
			order = append(order, &row)
		}
		rows[at].Live = rows[at].Live.Add(mem.Tally{Count: 1, Bytes: a.Requested})
	}
	for _, row := range order {
		u.add(*row)
	}
	return u, nil
}

// rowOf returns a row whose buffers are not counted yet.
func rowOf(g snapshot.Group, p snapshot.Place, device string) Row {
	row := Row{Stack: p.Stack, CallSite: p.CallSite, Kind: g.Kind.String(), Section: p.Section, Device: device, Stream: labels.Stream(p.Stream)}
	if g.Memory != alloc.UnknownMemory {
		row.Memory = g.Memory.String()
	}
	if g.DType.Bits() > 0 { // it is not, and the shape unknown, for shapes long gone
		row.DType, row.Shape = g.DType.String(), g.Shape.String()
	}
	return row
}

// add puts a row where its type of memory belongs.
func (u *Usage) add(row Row) {
	if labels.OnHost(row.Memory) {
		u.Host = append(u.Host, row)
	} else {
		u.Rows = append(u.Rows, row)
	}
}
