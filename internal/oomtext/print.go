package oomtext

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

const (
	width    = 80 // of what is printed
	barWidth = 27
	maxShown = 8 // further failures that have a line each
)

// String explains the first failure on one screen, and has a line for each of the others.
func (r *Report) String() string {
	var b strings.Builder
	if len(r.Failures) > 0 {
		b.WriteString(r.Failures[0].String())
		others := r.Failures[1:]
		if len(others) > 0 {
			fmt.Fprintf(&b, "\n%d more:\n", len(others)+r.LeftOut)
		}
		for i, f := range others {
			if i == maxShown {
				fmt.Fprintf(&b, "  and %d more: --json has %d\n", len(others)+r.LeftOut-maxShown, len(r.Failures))
				break
			}
			b.WriteString(text.Wrap(f.Summary(), width, "  ", "    "))
		}
	}
	for i, s := range r.Stats {
		if i > 0 || len(r.Failures) > 0 {
			b.WriteString("\n")
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// Summary says in a line who asked for what, where, and the verdict.
func (f *Failure) Summary() string {
	kind, _, _ := strings.Cut(f.Says, ":")
	return f.title() + ": " + kind
}

// title says who asked for what, and where.
func (f *Failure) title() string {
	b := fmt.Sprintf("line %d: %s", f.Line, f.Source)
	if f.Rank != "" {
		b += " of " + f.Rank
	}
	if f.Requested >= 0 {
		b += fmt.Sprintf(" asked for %v", f.Requested)
	} else {
		b += " ran out of memory"
	}
	if f.Purpose != "" {
		b += " for " + text.Line(f.Purpose)
	}
	if f.Device != "" && f.Device != "host" {
		b += " on " + text.Line(f.Device)
	}
	switch f.Repeats {
	case 0:
	case 1:
		b += " (the text says it twice)"
	default:
		b += fmt.Sprintf(" (the text says it %d times)", f.Repeats+1)
	}
	return b
}

// String explains the failure.
func (f *Failure) String() string {
	var b strings.Builder
	b.WriteString(text.Wrap(f.title(), width, "", "  "))
	b.WriteString(f.bars())
	b.WriteString("\n" + text.Wrap(f.Says, width, "", ""))
	for _, note := range f.Notes {
		b.WriteString(text.Wrap("Note: "+text.Line(note)+".", width, "", ""))
	}
	list := func(title string, all []Help) {
		if len(all) > 0 {
			b.WriteString("\n" + title + "\n")
		}
		for i, h := range all {
			b.WriteString(text.Wrap(h.Do+": "+h.Why, width, fmt.Sprintf("  %d. ", i+1), "     "))
		}
	}
	list("What would help:", f.Helps)
	if f.advises {
		list("What the message advises, and cannot help here:", f.Useless)
	} else {
		list("What is often advised, and cannot help here:", f.Useless)
	}
	return b.String()
}

// part is a row of the bar of a device.
type part struct {
	name  string
	bytes alloc.Bytes
}

// parts are who has the device's memory, as far as the message says it, in the order in which they are shown.
func (f *Failure) parts() []part {
	all := []part{{"free", f.Free}}
	if f.Others >= 0 || f.Beside >= 0 || f.Outside < 0 {
		all = append(all, part{"other processes", f.Others}, part{"this process, outside the allocator", f.Beside})
	} else {
		all = append(all, part{"outside of the allocator", f.Outside})
	}
	return append(all, part{"reserved but unallocated", f.Inactive}, part{"allocated", f.Allocated})
}

// bars draws the device's memory: each part where it stands in the whole, and the request below.
func (f *Failure) bars() string {
	if f.Capacity < 0 && f.Free < 0 && f.Allocated < 0 && f.Limit < 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n")
	row := func(name string, n, from alloc.Bytes) {
		size := "unknown"
		if n >= 0 {
			size = n.String()
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("  %-37s %10s  %s", name, size, f.bar(from, n)), " "))
	}
	from := alloc.Bytes(0)
	for _, p := range f.parts() {
		row(p.name, p.bytes, from)
		from += max(0, p.bytes)
	}
	row("requested", f.Requested, 0)
	if f.Limit >= 0 {
		row("limit of the program", f.Limit, 0)
	}
	row("capacity of the device", f.Capacity, 0)
	return b.String()
}

// bar draws an amount from a place of the device on.
func (f *Failure) bar(from, n alloc.Bytes) string {
	if f.Capacity <= 0 || n <= 0 {
		return ""
	}
	at := func(n alloc.Bytes) int { return int(min(1, float64(n)/float64(f.Capacity))*barWidth + 0.5) }
	begin, end := at(from), at(from+n)
	end = max(end, begin+1)
	bar := strings.Repeat(" ", min(begin, barWidth-1)) + strings.Repeat("#", min(end, barWidth)-min(begin, barWidth-1))
	if from+n > f.Capacity+f.Capacity/64 {
		bar += ">"
	}
	return bar
}

// String describes the counters.
func (s *Stats) String() string {
	var b strings.Builder
	title := fmt.Sprintf("line %d: PyTorch's allocator", s.Line)
	if s.Device != "" {
		title += " on " + s.Device
	}
	fmt.Fprintf(&b, "%s\n\n", title)
	fmt.Fprintf(&b, "  %-37s %10s %10s\n", "", "now", "peak")
	row := func(name string, now, peak alloc.Bytes) {
		word := func(n alloc.Bytes) string {
			if n < 0 {
				return "unknown"
			}
			return n.String()
		}
		if now >= 0 || peak >= 0 {
			fmt.Fprintf(&b, "  %-37s %10s %10s\n", name, word(now), word(peak))
		}
	}
	row("requested", s.Requested, s.RequestedPeak)
	row("allocated", s.Allocated, s.AllocatedPeak)
	row("reserved", s.Reserved, s.ReservedPeak)
	b.WriteString("\n" + text.Wrap(s.says(), width, "", ""))
	return b.String()
}

// says tells what the counters mean.
func (s *Stats) says() string {
	var says []string
	if n := s.Inactive(); n >= 0 {
		words := fmt.Sprintf("%v are reserved but unallocated", n)
		if s.NonReleasable >= 0 {
			words += fmt.Sprintf(", of which %v lie in pieces between buffers in use and torch.cuda.empty_cache() gives back the rest", min(s.NonReleasable, n))
		}
		says = append(says, words)
	}
	if s.Retries > 0 {
		says = append(says, fmt.Sprintf("%d times the driver refused and the cache was emptied to try again, which is slow", s.Retries))
	}
	if s.OOMs >= 0 {
		says = append(says, fmt.Sprintf("memory ran out %d times", s.OOMs))
	}
	if len(says) == 0 {
		return "The text says no more."
	}
	return strings.Join(says, "; ") + ". The device's size and what others have are not in it."
}

// amountJSON is null if the amount is unknown.
type amountJSON alloc.Bytes

func (n amountJSON) MarshalJSON() ([]byte, error) {
	if n < 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int64(n))
}

type failureJSON struct {
	Line        int             `json:"line"`
	Repeats     int             `json:"repeats"`
	Source      string          `json:"source"`
	Device      *string         `json:"device"`
	Rank        *string         `json:"rank"`
	Purpose     *string         `json:"purpose"`
	Message     string          `json:"message"`
	Requested   amountJSON      `json:"requested_bytes"`
	Capacity    amountJSON      `json:"capacity_bytes"`
	Free        amountJSON      `json:"free_bytes"`
	Allocated   amountJSON      `json:"allocated_bytes"`
	Inactive    amountJSON      `json:"inactive_bytes"`
	Reserved    amountJSON      `json:"reserved_bytes"`
	ThisProcess amountJSON      `json:"process_bytes"`
	Beside      amountJSON      `json:"process_outside_bytes"`
	Others      amountJSON      `json:"others_bytes"`
	Outside     amountJSON      `json:"outside_bytes"`
	Limit       amountJSON      `json:"limit_bytes"`
	Processes   []Process       `json:"processes"`
	Verdict     verdict.Verdict `json:"verdict"`
	Says        string          `json:"says"`
	Helps       []Help          `json:"helps"`
	Useless     []Help          `json:"cannot_help"`
	Notes       []string        `json:"notes"`
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// orEmpty returns a list that is not null in JSON.
func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// MarshalJSON writes what is known; null is unknown.
func (f *Failure) MarshalJSON() ([]byte, error) {
	return json.Marshal(failureJSON{
		f.Line, f.Repeats, f.Source, optional(f.Device), optional(f.Rank), optional(f.Purpose), f.Message,
		amountJSON(f.Requested), amountJSON(f.Capacity), amountJSON(f.Free), amountJSON(f.Allocated), amountJSON(f.Inactive), amountJSON(f.Reserved),
		amountJSON(f.ThisProcess), amountJSON(f.Beside), amountJSON(f.Others), amountJSON(f.Outside), amountJSON(f.Limit), orEmpty(f.Processes),
		f.Verdict, f.Says, orEmpty(f.Helps), orEmpty(f.Useless), orEmpty(f.Notes),
	})
}

// MarshalJSON writes what is known; null is unknown.
func (s *Stats) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Line          int        `json:"line"`
		Device        *string    `json:"device"`
		OOMs          amountJSON `json:"ooms"`
		Retries       amountJSON `json:"retries"`
		Requested     amountJSON `json:"requested_bytes"`
		RequestedPeak amountJSON `json:"requested_peak_bytes"`
		Allocated     amountJSON `json:"allocated_bytes"`
		AllocatedPeak amountJSON `json:"allocated_peak_bytes"`
		Reserved      amountJSON `json:"reserved_bytes"`
		ReservedPeak  amountJSON `json:"reserved_peak_bytes"`
		Inactive      amountJSON `json:"inactive_bytes"`
		NonReleasable amountJSON `json:"pinned_bytes"`
	}{
		s.Line, optional(s.Device), amountJSON(s.OOMs), amountJSON(s.Retries), amountJSON(s.Requested), amountJSON(s.RequestedPeak), amountJSON(s.Allocated),
		amountJSON(s.AllocatedPeak), amountJSON(s.Reserved), amountJSON(s.ReservedPeak), amountJSON(s.Inactive()), amountJSON(s.NonReleasable),
	})
}

// MarshalJSON writes the failures and the tables.
func (r *Report) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Failures []*Failure `json:"errors"`
		LeftOut  int        `json:"left_out"`
		Stats    []*Stats   `json:"statistics"`
	}{orEmpty(r.Failures), r.LeftOut, orEmpty(r.Stats)})
}
