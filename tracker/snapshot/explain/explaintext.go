package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// String returns the explanation as a few lines.
func (x *Explanation) String() string {
	if x.noSegments {
		return fmt.Sprintf("reserved %v for %v requested; without the segments it is not known what is stuck\n", x.Reserved, x.Requested)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "reserved %v = %v requested + %v rounding + %v left unsplit", x.Reserved, x.Requested, x.Rounding, x.Unsplit)
	if x.Pending > 0 {
		fmt.Fprintf(&b, " + %v freed, in use on other streams", x.Pending)
	}
	fmt.Fprintf(&b, " + %v inactive\n", x.Releasable+x.Stuck)
	if x.emptying == "" {
		fmt.Fprintf(&b, "the allocator gives none of it back to the driver; %s\n", x.stuck())
	} else {
		fmt.Fprintf(&b, "of the inactive memory, %s would give back %v; %s\n", x.emptying, x.Releasable, x.stuck())
	}
	b.WriteString(x.found())
	const shown = 3
	for _, l := range x.Lines[:min(shown, len(x.Lines))] {
		fmt.Fprintf(&b, "%v\n", l)
	}
	for _, p := range x.pins[:min(shown, len(x.pins))] {
		fmt.Fprintf(&b, "%v\n", p)
	}
	return b.String()
}

// stuck tells what is free and cannot be given back.
func (x *Explanation) stuck() string {
	if x.Stuck == 0 {
		return "nothing is stuck"
	}
	where := "between buffers"
	if len(x.pins) == 1 && x.pins[0].Blocks == 1 {
		where = "beside a buffer"
	}
	return fmt.Sprintf("%v is stuck %s%s in %s", x.Stuck, where, x.orPrivate(), plural(len(x.pins), "segment"))
}

// orPrivate says that private pools keep some of the stuck memory, if they do.
func (x *Explanation) orPrivate() string {
	if slices.ContainsFunc(x.pins, func(p pin) bool { return p.Private != "" }) {
		return " or in private pools"
	}
	return ""
}

// found tells what requests find.
func (x *Explanation) found() string {
	_, largest := x.Find(2 * alloc.MiB)
	if largest == 0 {
		return "requests that the cache serves without the driver: none of more than 1 MiB\n"
	}
	if largest < 2*alloc.MiB {
		return fmt.Sprintf("requests that the cache serves without the driver: up to %v, its largest inactive block\n", largest)
	}
	var parts []string
	for n := 2 * alloc.MiB; n <= largest && n < 4*alloc.TiB; n *= 8 {
		requests, _ := x.Find(n)
		parts = append(parts, fmt.Sprintf("%d of %v", requests, n))
	}
	return fmt.Sprintf("requests that the cache serves without the driver: %s; its largest inactive block has %v\n", strings.Join(parts, ", or "), largest)
}

// String describes the line: "8 buffers, 4.0 MiB at main.go:7 main.cache keep 36.0 MiB in 2
// segments".
func (l Line) String() string {
	keep := "keep"
	if l.buffers.Count == 1 {
		keep = "keeps"
	}
	return fmt.Sprintf("%v at %v %s %v in %s%s", l.buffers, text.Line(l.CallSite.String()), keep, l.Stuck, plural(l.segments, "segment"), lived(", the oldest live for", l.oldest, l.usually))
}

// String describes the segment and its largest buffer.
func (p pin) String() string {
	its := fmt.Sprintf("segment %v of %v, %v inactive", p.Segment, p.Size, p.Stuck)
	if p.Private != "" {
		its = fmt.Sprintf("segment %v of %v in private pool %s, %v inactive", p.Segment, p.Size, text.Line(p.Private), p.Stuck)
	}
	switch {
	case p.Blocks == 0 && p.Private != "":
		return its
	case p.Blocks == 0:
		return its + " in pieces that the driver cannot take"
	case p.Blocks == 1:
		its += ", is kept by one buffer"
	default:
		its += fmt.Sprintf(", is kept by %d buffers, the largest", p.Blocks)
	}
	return fmt.Sprintf("%s of %v, %v at %v%s", its, p.Largest.Requested, text.Line(p.Largest.Kind.String()), text.Line(p.Largest.Site.String()), lived(", live for", p.Largest.Age, p.Largest.Usually))
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// lived says how old something is, where that is known.
func lived(what string, age, usually age) string {
	if age == 0 {
		return ""
	}
	what = fmt.Sprintf("%s %v", what, age)
	if usually > 0 {
		what += fmt.Sprintf(" (99 %% of those freed: less than %v)", usually)
	}
	return what
}

// MarshalJSON writes all that is known, as docs/explain.schema.json describes it.
func (x Explanation) MarshalJSON() ([]byte, error) {
	type line struct {
		Site     mem.Frame   `json:"call_site"`
		Stuck    alloc.Bytes `json:"stuck_bytes"`
		Segments int         `json:"segments"`
		Buffers  mem.Tally   `json:"buffers"`
		Oldest   age         `json:"oldest_ns,omitempty"`
		Usually  age         `json:"usually_freed_below_ns,omitempty"`
	}
	lines := make([]line, len(x.Lines))
	for i, l := range x.Lines {
		lines[i] = line{l.CallSite, l.Stuck, l.segments, l.buffers, l.oldest, l.usually}
	}
	return json.Marshal(struct {
		Device     string      `json:"device"`
		Ordinal    int         `json:"ordinal"`
		Reserved   alloc.Bytes `json:"reserved_bytes"`
		Requested  alloc.Bytes `json:"requested_bytes"`
		Rounding   alloc.Bytes `json:"rounding_bytes"`
		Unsplit    alloc.Bytes `json:"unsplit_bytes"`
		Pending    alloc.Bytes `json:"pending_bytes"`
		Releasable alloc.Bytes `json:"releasable_bytes"`
		Stuck      alloc.Bytes `json:"stuck_bytes"`
		Pins       []pin       `json:"pins"`
		Lines      []line      `json:"lines"`
		Holes      []holes     `json:"holes"`
		NoSegments bool        `json:"no_segments,omitempty"`
	}{
		x.device, x.ordinal, x.Reserved, x.Requested, x.Rounding, x.Unsplit, x.Pending, x.Releasable, x.Stuck,
		x.pins, lines, x.holes, x.noSegments,
	})
}
