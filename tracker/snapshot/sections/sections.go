// Package sections holds what sections of a program measured: the Data of one section, and a Profile of all that have
// ended, layer by layer, which can be compared with an Estimate.
//
//	data := tr.Do("forward", forward).Data()
//	fmt.Print(data.Table())
//	fmt.Print(tr.Profile().Tree())
//
// The package measures nothing itself: package tracker does. A profile is a copy, which does not
// change when the program goes on.
package sections

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Measured is what a section measured, or what all ended sections of one path did: then the times, Allocated and Freed
// are sums over the calls, and SelfPeak is the highest.
type Measured struct {
	Path     string    `json:"path"`
	CallSite mem.Frame `json:"call_site"`       // who opened it, or the last of them
	Stack    mem.Stack `json:"stack,omitempty"` // the whole call stack, innermost first; shared: do not write
	// Time is measured by the host's clock. DeviceTime is measured by the device's clock, from when
	// the device reached the section's beginning until it had done what was queued by its end, busy
	// or waiting. It is -1 if the device cannot tell.
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"`
	// CPUTime is the processor time of the whole process during the section, in the program and in
	// the kernel. It includes goroutines that have nothing to do with the section, and Go's
	// collector: the system does not measure goroutines apart. If it is more than Time, more than
	// one processor worked. It is -1 unless SectionConfig.Host is "detail" or "peak".
	CPUTime time.Duration `json:"cpu_time_ns"`

	// Allocated and Freed are the bytes that the section itself and its parts allocated and freed;
	// the work of other goroutines beside it does not count. The difference is what the section
	// retained. It is negative if the section freed older buffers. SelfPeak is the highest value of that
	// difference.
	Allocated mem.Tally   `json:"allocated"`
	Freed     mem.Tally   `json:"freed"`
	SelfPeak  alloc.Bytes `json:"self_peak_bytes"`
}

// Data is what a Section measured. An unknown amount is -1.
type Data struct {
	Measured
	Start time.Time
	// Incomplete says why the section measured nothing, or stopped before its End;
	// it is empty if neither is so.
	Incomplete string

	// GPU is the level of the tracker's live buffers, in requested bytes,
	// whichever goroutine allocated them. Its peak is exact.
	GPU MemoryUse
	// RSS is the process's resident set as the kernel counts it, which lags behind by some MiB on
	// machines with many processors. Heap is the objects on Go's heap, including dead ones not collected
	// yet. Heap and the peak of RSS are known only if SectionConfig.Host is "detail" or "peak"; otherwise
	// the reading of RSS may be up to 10 µs old.
	RSS  MemoryUse
	Heap MemoryUse
}

// MemoryUse is a level of memory over a stretch of time. An unknown amount is -1.
type MemoryUse struct {
	Before alloc.Bytes
	Used   alloc.Bytes // at the end
	Peak   alloc.Bytes
	// PeakAtMost says that Peak is only an upper bound: it is the process's peak from an earlier
	// time, which the section did not exceed.
	PeakAtMost bool
}

// Consumed returns the change from begin to end.
func (u MemoryUse) Consumed() alloc.Bytes {
	if u.Used < 0 || u.Before < 0 {
		return 0
	}
	return u.Used - u.Before
}

// Peaked returns how far the peak exceeded the final level: the program needed Consumed plus
// Peaked. It is -1 if the peak is unknown.
func (u MemoryUse) Peaked() alloc.Bytes {
	if u.Peak < 0 || u.Used < 0 {
		return -1
	}
	return max(0, u.Peak-u.Used)
}

// memories are the types of memory that something is known of.
func (d Data) memories() (known []namedUse) {
	for _, m := range []namedUse{{"RSS:", d.RSS}, {"Go:", d.Heap}, {"GPU:", d.GPU}} {
		if m.Before >= 0 || m.Used >= 0 || m.Peak >= 0 {
			known = append(known, m)
		}
	}
	return known
}

type namedUse struct {
	name string
	MemoryUse
}

// String returns the data on one line, in ipygpulogger's compact form: MiB consumed, peaked
// and used in total. Rows without any known amount are left out; see Table.
//
//	RSS: 0.4/-/17.0 MiB | GPU: 2567.0/1437.0/5465.0 MiB | Time 0.012s | forward (Consumed/Peaked/Used Total)
func (d Data) String() string {
	var b strings.Builder
	for _, m := range d.memories() {
		fmt.Fprintf(&b, "%s %s/%s/%s MiB | ", m.name, m.consumed(), m.peaked(), m.used())
	}
	fmt.Fprintf(&b, "Time %.3fs | %s (Consumed/Peaked/Used Total)", d.Time.Seconds(), d.Path)
	if d.Incomplete != "" {
		b.WriteString(" | incomplete: " + d.Incomplete)
	}
	return b.String()
}

// Table returns the data as ipygpulogger prints it, in MiB, with a line for Go's heap if that was
// measured. "<=" marks a peak that is only an upper bound; an unknown amount is "-".
func (d Data) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "RAM:  Consumed   Peaked  Used Total  in %.3fs", d.Time.Seconds())
	if d.DeviceTime >= 0 {
		fmt.Fprintf(&b, ", %.3fs by the GPU's clock", d.DeviceTime.Seconds())
	}
	if d.CPUTime >= 0 {
		fmt.Fprintf(&b, ", %.3fs of CPU", d.CPUTime.Seconds())
	}
	fmt.Fprintf(&b, " (%s)\n", d.Path)
	for _, m := range d.memories() {
		fmt.Fprintf(&b, "%-5s %8s %8s  %10s MiB\n", m.name, m.consumed(), m.peaked(), m.used())
	}
	if d.Incomplete != "" {
		b.WriteString("Incomplete: " + d.Incomplete + "\n")
	}
	return b.String()
}

func (u MemoryUse) consumed() string { return inMiB(u.Consumed(), u.Used >= 0 && u.Before >= 0) }

func (u MemoryUse) used() string { return inMiB(u.Used, u.Used >= 0) }

func (u MemoryUse) peaked() string {
	text := inMiB(u.Peaked(), u.Peaked() >= 0)
	if u.PeakAtMost {
		return "<=" + text
	}
	return text
}

// inMiB prints an amount as the reference's table does, with a decimal more.
func inMiB(n alloc.Bytes, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(alloc.MiB))
}

// Profile is the sections that have ended, added up by path, and sorted as a tree: a section's
// parts follow it. It is a copy: later sections do not change it.
type Profile []Row

// SetEstimates sets the Estimate of the rows whose path is a key of e. Other rows keep theirs. The
// error names an Estimate whose Of is none of its words.
func (p Profile) SetEstimates(e map[string]Estimate) error {
	for path, expected := range e {
		if !slices.Contains([]string{"", byAllocated, byRetained, byPeak, bySelfPeak, byLive}, expected.Of) {
			return fmt.Errorf("estimate for %q: of %q: want one of %s, %s, %s, %s, %s", path, expected.Of, byAllocated, byRetained, byPeak, bySelfPeak, byLive)
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
	}
	return nil
}

// Sorted returns a copy, ordered by a column of its table: larger numbers first, texts alphabetically, equal
// ones as they were. The columns are "path", "calls", "time", "gpu-time", "cpu-time", "rss", "heap", "allocated",
// "retained", "estimate", "difference", "peak", "self-peak", "live", "flops", "params", "inputs" and "line"; "tree" keeps
// the order. The error lists them.
func (p Profile) Sorted(by string) (Profile, error) {
	if err := checkColumn(by); err != nil {
		return nil, err
	}
	rows := slices.Clone(p)
	columns := columns()
	if i := slices.IndexFunc(columns, func(c column) bool { return c.name == by }); i >= 0 {
		slices.SortStableFunc(rows, func(x, y Row) int { return columns[i].compare(&x, &y) })
	}
	return rows, nil
}

// Row is all ended sections of one path. Calls, times, RSS, Heap, Allocated and Freed
// are sums over the calls. Peak and SelfPeak are maxima. Live is the present level. Sums and
// levels include the sections' parts.
type Row struct {
	Measured
	Calls int64        // 0 if only parts of it are known
	RSS   *alloc.Bytes // resident set, consumed; nil if it is not known
	Heap  *alloc.Bytes // Go's heap, consumed; nil if it is not known
	Peak  alloc.Bytes  // the highest of Data.GPU.Peak
	Live  mem.Tally    // allocated there and alive now

	Estimate *Estimate
}

// Retained returns what an average call allocated minus what it freed, in bytes.
func (r *Row) Retained() alloc.Bytes {
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
	case byRetained:
		return r.Retained()
	case byPeak:
		return r.Peak
	case bySelfPeak:
		return r.SelfPeak
	case byLive:
		return r.Live.Bytes
	}
	return 0
}

// Estimate is what is expected of one call of a section, and the work that the call does; what is not known of that is
// zero. Of a layer in a report of
// package estimate it is
//
//	sections.Estimate{
//		Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params,
//		Of: "allocated", Bytes: row.Allocated,
//	}
type Estimate struct {
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	FLOPs  int64         `json:"flops,omitempty"` // floating-point operations
	Params int64         `json:"params,omitempty"`
	// Of says which measured amount it is an estimate of: "allocated", "retained", "peak", "self-peak"
	// or "live".
	Of    string      `json:"of"`
	Bytes alloc.Bytes `json:"bytes"`
}
