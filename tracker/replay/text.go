package replay

import (
	"fmt"
	"strconv"
	"strings"
)

// String describes the result in a few lines.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.verdict())
	if r.OOM != nil {
		fmt.Fprintf(&b, "%v\n", r.OOM)
	}
	fmt.Fprintf(&b, "replayed: peak %v requested, %v in blocks, %v reserved; driver calls: %d allocations, %d frees; retries: %d\n",
		r.PeakRequested, r.PeakAllocated, r.PeakReserved, r.DriverAllocs, r.DriverFrees, r.Retries)
	fmt.Fprintf(&b, "recorded: peak %v requested, %v in blocks, %v reserved; driver calls: %d allocations, %d frees; retries: %s; out of memory: %d\n",
		r.Recorded.PeakRequested, r.Recorded.PeakAllocated, r.Recorded.PeakReserved, r.Recorded.DriverAllocs, r.Recorded.DriverFrees, r.Recorded.retries(), r.Recorded.OOMs)
	for _, note := range r.Notes() {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

// retries prints the number of retries.
func (l *Levels) retries() string {
	if l.Retries < 0 {
		return "unknown"
	}
	return strconv.FormatInt(l.Retries, 10)
}

// verdict is the first line.
func (r Result) verdict() string {
	on := "without a limit"
	if r.Memory > 0 {
		on = fmt.Sprintf("on %v", r.Memory)
	}
	fits := "fits"
	if !r.Fits {
		fits = "does not fit"
	}
	return fmt.Sprintf("%s: %d events, allocator %s, %s", fits, r.Events, r.Allocator, on)
}

// Notes say what to keep in mind of the result: that the history begins in the middle, or is torn.
func (r Result) Notes() (notes []string) {
	if s := r.Start; s.Buffers > 0 || s.Dropped > 0 {
		notes = append(notes, fmt.Sprintf("the history begins with %d buffers live, %v, and %v reserved: %s",
			s.Buffers, s.Requested, s.Reserved, map[Layout]string{
				Empty: "nothing", AsRecorded: "replayed from the recorded segments", Packed: "replayed with these buffers packed, without older holes",
			}[s.Layout]))
	}
	if r.Start.EarlierPeak > 0 {
		notes = append(notes, fmt.Sprintf("before the history, %v were requested at a time: more than in it, and not replayed", r.Start.EarlierPeak))
	}
	if g := r.Gap; g != nil {
		notes = append(notes, fmt.Sprintf("the history is torn, first at event %d (%s): %d buffers, %v, were taken to live as long as they can have; at least %v were requested, %v in blocks",
			g.Event, g.Reason, g.Buffers, g.Bytes, g.LeastRequested, g.LeastAllocated))
		if g.Events > 0 {
			notes = append(notes, fmt.Sprintf("its latest %d events are missing", g.Events))
		}
	}
	return notes
}

// String describes the request, and what was free but could not serve it.
func (o *OOM) String() string {
	if o.Beginning {
		return fmt.Sprintf("out of memory at the beginning: what was live before the first event needs %v, and %v is available", o.Requested, o.Free)
	}
	return fmt.Sprintf("out of memory at event %d: %v requested at %v\nthe device has %v free; %v are reserved, %v of it in blocks and %v free, in holes of %v at most",
		o.Event, o.Requested, o.Site, o.Free, o.Reserved, o.Allocated, o.Inactive, o.LargestHole)
}
