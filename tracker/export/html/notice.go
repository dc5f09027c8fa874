package html

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// notice says why the dump was written. A failed allocation is named before anything else.
type notice struct {
	OutOfMemory bool
	What        string
	Advice      string
	Facts       []string
	Holders     []string // the lines of code that hold most
}

// notice returns nil if there is no reason.
func (w *writing) notice(f *facts) *notice {
	r := f.dump
	if r.OOM == nil {
		if r.Reason == "" {
			return nil
		}
		first, _, _ := strings.Cut(r.Reason, "\n")
		return &notice{What: w.long(first)}
	}
	o := r.OOM
	what := ""
	if o.DType.Bits() > 0 { // an unknown type is not named
		what = fmt.Sprintf(" for a buffer, %v %v %v,", o.Kind, o.Shape, o.DType)
	}
	n := &notice{
		OutOfMemory: true, Advice: w.long(o.Advice),
		What: w.long(fmt.Sprintf("%v were asked for,%s on %s.", o.Requested, what, export.Device(r.Snapshot))),
	}
	if o.Requested < 0 {
		n.What = w.long(fmt.Sprintf("The file does not tell how much was asked for%s on %s.", strings.TrimSuffix(what, ","), export.Device(r.Snapshot)))
	}
	if o.Section != "" {
		n.Facts = append(n.Facts, w.long(f.place()+o.Section))
	}
	for _, part := range []struct {
		n    alloc.Bytes
		what string
	}{
		{o.Free, "free, as the driver says"},
		{o.Total, "is what the device has"},
		{o.Reserved, "reserved by this program"},
		{f.inactive(), "of that inactive, ready for reuse"},
		{o.LargestInactive, "in the largest inactive block"},
		{o.Untracked, "in use that the tracker does not explain"},
		{o.Elsewhere, "inactive in the caches of other trackers of this process"},
		{o.Others, "used by other processes"},
	} {
		if part.n >= 0 {
			n.Facts = append(n.Facts, fmt.Sprintf("%v %s", part.n, part.what))
		}
	}
	for _, site := range o.CallSites[:min(len(o.CallSites), w.lines)] {
		n.Holders = append(n.Holders, fmt.Sprintf("%v from %s", site.Tally, w.line(site.Frame)))
	}
	return n
}

// place introduces what asked for the memory. A log names an operation.
func (f *facts) place() string {
	if f.source == walk.BFC {
		return "by the operation "
	}
	return "in the section "
}

// inactive returns what of the reserved memory no buffer used at the error; negative if it is not known.
func (f *facts) inactive() alloc.Bytes {
	if inactive := f.dump.OOM.Inactive; inactive >= 0 || f.moment.At != "oom" || len(f.at.Segments) == 0 {
		return inactive
	}
	return max(0, f.at.Reserved-(f.at.Allocated-f.at.Registered))
}
