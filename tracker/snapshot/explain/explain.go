// Package explain says why a device's reserved memory is more than its program asked for, to the byte, and which
// lines of code pin the rest: it can neither be used nor given back.
//
//	fmt.Print(explain.Snapshot(tr.Snapshot()))
//
// It reads the segments of a snapshot, and runs nothing again. What other settings would have saved
// is a question for package tracker/replay.
package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Explanation says why a device's reserved memory is more than its program asked for, and what
// pins it. The account adds up, to the byte:
//
//	Reserved = Requested + Rounding + Unsplit + Pending + Reclaimable + Pinned
//
// Registered buffers are not in it: their memory is not the allocator's.
type Explanation struct {
	Reserved    alloc.Bytes // all segments
	Requested   alloc.Bytes // of the blocks in use
	Rounding    alloc.Bytes // what rounds these up to 512 bytes
	Unsplit     alloc.Bytes // what the blocks hold beyond that: too little to be a separate block, or rounded up by a setting
	Pending     alloc.Bytes // freed blocks that another stream still uses
	Reclaimable alloc.Bytes // free, and what ClearCache would give back
	Pinned      alloc.Bytes // free memory between blocks in use or in a private pool: it serves only requests that fit, or that belong to that pool

	// Lines are the lines of code that pin memory, the one that pins most first. A segment
	// counts for the line with the largest block in use in it.
	Lines []Line

	device     string
	ordinal    int
	pins       []pin // the most pinned memory first
	holes      []holes
	emptying   string // what the program calls to empty its cache; "" if nothing does
	noSegments bool   // the snapshot has none: only Reserved and Requested are known
	free       []freeBlock
}

type freeBlock struct {
	pool   string
	stream alloc.Stream
	size   alloc.Bytes
}

// pin is a segment that is partly free, and the blocks that pin it.
type pin struct {
	Segment alloc.Ptr    `json:"address"`
	Size    alloc.Bytes  `json:"bytes"`
	Pool    string       `json:"pool"`
	Private string       `json:"private_pool,omitempty"` // its name
	Stream  alloc.Stream `json:"stream,omitempty"`
	Pinned  alloc.Bytes  `json:"pinned_bytes"` // free bytes in the segment
	Blocks  int          `json:"blocks"`       // blocks in use in the segment
	Largest pinBuffer    `json:"largest"`      // the largest of these
}

// pinBuffer is a block in use. Unknown fields are zero.
type pinBuffer struct {
	Ptr       alloc.Ptr   `json:"address"`
	Requested alloc.Bytes `json:"requested_bytes"`
	Kind      mem.Kind    `json:"kind,omitempty"`
	Label     string      `json:"label,omitempty"`
	Site      mem.Frame   `json:"call_site"`
	Age       age         `json:"age_ns,omitempty"`
	// Usually is the lowest power of two of nanoseconds within which 99 % of the freed buffers of
	// the line were freed; 0 if none was.
	Usually age `json:"usually_freed_below_ns,omitempty"`
}

// age is a duration that prints in two digits.
type age time.Duration

// String prints the age: "1.2 s".
func (a age) String() string { return text.Duration(time.Duration(a)) }

// Line is a line of code, and the memory that its buffers pin.
type Line struct {
	CallSite mem.Frame   `json:"call_site"`
	Pinned   alloc.Bytes `json:"pinned_bytes"` // in the segments that the line's buffers pin

	buffers         mem.Tally // the line's buffers in these segments
	segments        int
	oldest, usually age
}

// holes are the inactive blocks of a pool and stream that have a size from Least up to twice that: what requests can find
// without the driver. Those of private pools are left out.
type holes struct {
	Pool   string       `json:"pool"`
	Stream alloc.Stream `json:"stream,omitempty"`
	Least  alloc.Bytes  `json:"least_bytes"` // the power of two below
	Count  int          `json:"count"`
	Bytes  alloc.Bytes  `json:"bytes"`
	Most   alloc.Bytes  `json:"largest_bytes"`
}

// Snapshot explains a snapshot. It needs its Segments: without them, as in a light snapshot or
// for a device without a cache, only Reserved and Requested are known, and nothing counts as
// pinned. It walks over all blocks and buffers.
func Snapshot(s *snapshot.Snapshot) *Explanation {
	x := &explainer{
		Explanation: &Explanation{device: s.Device, ordinal: s.Ordinal, emptying: emptying(s), pins: []pin{}, Lines: []Line{}, holes: []holes{}},
		of:          s, buffers: make(map[alloc.Ptr]int32, len(tables.Of(&s.Tables).Allocations)),
		byLine: make(map[mem.Frame]*Line), byKey: make(map[holeKey]*holes),
	}
	for i, a := range tables.Of(&s.Tables).Allocations {
		if !a.Foreign {
			x.buffers[a.Ptr] = int32(i)
		}
	}
	for i := range s.Segments {
		x.segment(&s.Segments[i])
	}
	if len(s.Segments) == 0 {
		x.Reserved, x.Requested, x.noSegments = s.Reserved, s.Live.Bytes, true
	}
	x.finish()
	return x.Explanation
}

// emptying names what a program calls to empty its cache; "" if there is nothing that it can call.
func emptying(s *snapshot.Snapshot) string {
	switch walk.SourceOf(s) {
	case walk.PyTorch:
		return "torch.cuda.empty_cache()"
	case walk.BFC:
		return ""
	}
	return "ClearCache"
}

// smallSegment is the size of the segments of small blocks in PyTorch's scheme.
const smallSegment = 2 * alloc.MiB

type explainer struct {
	*Explanation
	of      *snapshot.Snapshot
	buffers map[alloc.Ptr]int32 // the index of its allocation
	byLine  map[mem.Frame]*Line
	byKey   map[holeKey]*holes
	inUse   []alloc.Block // in the current segment
}

type holeKey struct {
	pool   string
	stream alloc.Stream
	least  alloc.Bytes
}

func (x *explainer) segment(s *alloc.Segment) {
	x.Reserved += s.Size
	x.inUse = x.inUse[:0]
	free, reclaimable := alloc.Bytes(0), alloc.Bytes(0)
	for _, b := range s.Blocks {
		switch b.State {
		case alloc.Inactive:
			free += b.Size
			if s.Private == "" {
				reclaimable += reclaimableIn(s, b)
				x.hole(s, b.Size)
			}
			continue
		case alloc.Pending:
			x.Pending += b.Size
		default:
			round := min(b.Size, (max(b.Requested, 1)+511)&^511)
			x.Requested += b.Requested
			x.Rounding += round - b.Requested
			x.Unsplit += b.Size - round
		}
		x.inUse = append(x.inUse, b)
	}
	x.Reclaimable += reclaimable
	if pinned := free - reclaimable; pinned > 0 {
		x.Pinned += pinned
		x.pin(s, pinned)
	}
}

// reclaimableIn returns how much of a free block can go back to the driver: all of it if it fills
// the segment; in an expandable segment, the complete chunks in it.
func reclaimableIn(s *alloc.Segment, b alloc.Block) alloc.Bytes {
	if !s.Expandable {
		if b.Size == s.Size {
			return b.Size
		}
		return 0
	}
	chunk := alloc.Ptr(smallSegment)
	if s.Pool == "large" {
		chunk = alloc.Ptr(10 * smallSegment)
	}
	from := s.Ptr + (b.Ptr-s.Ptr+chunk-1)/chunk*chunk
	to := s.Ptr + (b.Ptr+alloc.Ptr(b.Size)-s.Ptr)/chunk*chunk
	if b.Ptr+alloc.Ptr(b.Size) == s.Ptr+alloc.Ptr(s.Size) {
		to = b.Ptr + alloc.Ptr(b.Size) // the last mapping ends with a chunk
	}
	if to <= from {
		return 0
	}
	return alloc.Bytes(to - from)
}

func (x *explainer) hole(s *alloc.Segment, size alloc.Bytes) {
	x.free = append(x.free, freeBlock{s.Pool, s.Stream, size})
	least := alloc.Bytes(512)
	for least*2 <= size && least < 1<<61 {
		least *= 2
	}
	key := holeKey{s.Pool, s.Stream, least}
	h := x.byKey[key]
	if h == nil {
		h = &holes{Pool: s.Pool, Stream: s.Stream, Least: least}
		x.byKey[key] = h
	}
	h.Count++
	h.Bytes += size
	h.Most = max(h.Most, size)
}

// pin adds a segment with pinned memory.
func (x *explainer) pin(s *alloc.Segment, pinned alloc.Bytes) {
	p := pin{Segment: s.Ptr, Size: s.Size, Pool: s.Pool, Private: s.Private, Stream: s.Stream, Pinned: pinned, Blocks: len(x.inUse)}
	if len(x.inUse) == 0 { // of a private pool, or remainders of expandable segments that are smaller than a chunk
		x.pins = append(x.pins, p)
		return
	}
	largest := slices.MaxFunc(x.inUse, func(a, b alloc.Block) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(b.Ptr, a.Ptr))
	})
	p.Largest = x.buffer(largest)
	x.pins = append(x.pins, p)

	l := x.byLine[p.Largest.Site]
	if l == nil {
		l = &Line{CallSite: p.Largest.Site, usually: p.Largest.Usually}
		x.byLine[l.CallSite] = l
	}
	l.Pinned += pinned
	l.segments++
	for _, b := range x.inUse {
		if other := x.buffer(b); other.Site == l.CallSite {
			l.buffers = l.buffers.Add(mem.Tally{Count: 1, Bytes: b.Requested})
			l.oldest = max(l.oldest, other.Age)
		}
	}
}

// buffer returns what is known of a block in use.
func (x *explainer) buffer(b alloc.Block) pinBuffer {
	out := pinBuffer{Ptr: b.Ptr, Requested: b.Requested}
	i, ok := x.buffers[b.Ptr]
	if !ok {
		return out
	}
	t := tables.Of(&x.of.Tables)
	a := &t.Allocations[i]
	site := &t.Sites[a.Site]
	out.Kind, out.Label, out.Site = site.Tensor.Kind, a.Label, t.Stacks.Site(site.Stack)
	if !x.of.Time.IsZero() && !t.Epoch.IsZero() {
		out.Age = age(max(0, x.of.Time.Sub(t.Epoch)-a.Since))
	}
	if unit := t.Lines[out.Site]; unit != nil && unit.Ages != nil {
		out.Usually = age(unit.Ages.Usual())
	}
	return out
}

func (x *explainer) finish() {
	slices.SortFunc(x.pins, func(a, b pin) int {
		return cmp.Or(cmp.Compare(b.Pinned, a.Pinned), cmp.Compare(a.Segment, b.Segment))
	})
	for _, l := range x.byLine {
		x.Lines = append(x.Lines, *l)
	}
	slices.SortFunc(x.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Pinned, a.Pinned), tables.CompareFrames(a.CallSite, b.CallSite))
	})
	for _, h := range x.byKey {
		x.holes = append(x.holes, *h)
	}
	slices.SortFunc(x.holes, func(a, b holes) int {
		return cmp.Or(cmp.Compare(b.Pool, a.Pool), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Least, b.Least))
	})
}

// Find returns how many requests of n bytes, one after the other, the inactive blocks of the
// default stream can serve without the driver, and the largest of these blocks.
func (x *Explanation) Find(n alloc.Bytes) (requests int64, largest alloc.Bytes) {
	pool := "small"
	if n > alloc.MiB {
		pool = "large"
	}
	need := (max(n, 1) + 511) &^ 511
	for _, h := range x.free {
		if h.pool == pool && h.stream == 0 {
			largest = max(largest, h.size)
			requests += int64(h.size / need)
		}
	}
	return requests, largest
}

// String returns the explanation as a few lines.
func (x *Explanation) String() string {
	if x.noSegments {
		return fmt.Sprintf("reserved %v for %v requested; without the segments it is not known what is pinned\n", x.Reserved, x.Requested)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "reserved %v = %v requested + %v rounding + %v left unsplit", x.Reserved, x.Requested, x.Rounding, x.Unsplit)
	if x.Pending > 0 {
		fmt.Fprintf(&b, " + %v freed, in use on other streams", x.Pending)
	}
	fmt.Fprintf(&b, " + %v inactive\n", x.Reclaimable+x.Pinned)
	if x.emptying == "" {
		fmt.Fprintf(&b, "the allocator gives none of it back to the driver; %s\n", x.pinned())
	} else {
		fmt.Fprintf(&b, "of the inactive memory, %s would give back %v; %s\n", x.emptying, x.Reclaimable, x.pinned())
	}
	b.WriteString(x.servable())
	const shown = 3
	for _, l := range x.Lines[:min(shown, len(x.Lines))] {
		fmt.Fprintf(&b, "%v\n", l)
	}
	for _, p := range x.pins[:min(shown, len(x.pins))] {
		fmt.Fprintf(&b, "%v\n", p)
	}
	return b.String()
}

// pinned says how much is free and cannot be given back.
func (x *Explanation) pinned() string {
	if x.Pinned == 0 {
		return "nothing is pinned"
	}
	where := "between buffers"
	if len(x.pins) == 1 && x.pins[0].Blocks == 1 {
		where = "beside a buffer"
	}
	return fmt.Sprintf("%v is pinned %s%s in %s", x.Pinned, where, x.orPrivate(), plural(len(x.pins), "segment"))
}

// orPrivate says that private pools have some of the pinned memory, if they do.
func (x *Explanation) orPrivate() string {
	if slices.ContainsFunc(x.pins, func(p pin) bool { return p.Private != "" }) {
		return " or in private pools"
	}
	return ""
}

// servable says which requests the inactive blocks can serve.
func (x *Explanation) servable() string {
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

// String describes the line: "8 buffers, 4.0 MiB at main.go:7 main.cache pin 36.0 MiB in 2
// segments".
func (l Line) String() string {
	verb := "pin"
	if l.buffers.Count == 1 {
		verb = "pins"
	}
	return fmt.Sprintf("%v at %v %s %v in %s%s", l.buffers, text.Line(l.CallSite.String()), verb, l.Pinned, plural(l.segments, "segment"), lived(", the oldest live for", l.oldest, l.usually))
}

// String describes the segment and its largest buffer.
func (p pin) String() string {
	said := fmt.Sprintf("segment %v of %v, %v inactive", p.Segment, p.Size, p.Pinned)
	if p.Private != "" {
		said = fmt.Sprintf("segment %v of %v in private pool %s, %v inactive", p.Segment, p.Size, text.Line(p.Private), p.Pinned)
	}
	switch {
	case p.Blocks == 0 && p.Private != "":
		return said
	case p.Blocks == 0:
		return said + " in pieces that the driver cannot take"
	case p.Blocks == 1:
		said += ", is pinned by one buffer"
	default:
		said += fmt.Sprintf(", is pinned by %d buffers, the largest", p.Blocks)
	}
	return fmt.Sprintf("%s of %v, %v at %v%s", said, p.Largest.Requested, text.Line(p.Largest.Kind.String()), text.Line(p.Largest.Site.String()), lived(", live for", p.Largest.Age, p.Largest.Usually))
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
		Pinned   alloc.Bytes `json:"pinned_bytes"`
		Segments int         `json:"segments"`
		Buffers  mem.Tally   `json:"buffers"`
		Oldest   age         `json:"oldest_ns,omitempty"`
		Usually  age         `json:"usually_freed_below_ns,omitempty"`
	}
	lines := make([]line, len(x.Lines))
	for i, l := range x.Lines {
		lines[i] = line{l.CallSite, l.Pinned, l.segments, l.buffers, l.oldest, l.usually}
	}
	return json.Marshal(struct {
		Device      string      `json:"device"`
		Ordinal     int         `json:"ordinal"`
		Reserved    alloc.Bytes `json:"reserved_bytes"`
		Requested   alloc.Bytes `json:"requested_bytes"`
		Rounding    alloc.Bytes `json:"rounding_bytes"`
		Unsplit     alloc.Bytes `json:"unsplit_bytes"`
		Pending     alloc.Bytes `json:"pending_bytes"`
		Reclaimable alloc.Bytes `json:"reclaimable_bytes"`
		Pinned      alloc.Bytes `json:"pinned_bytes"`
		Pins        []pin       `json:"pins"`
		Lines       []line      `json:"lines"`
		Holes       []holes     `json:"holes"`
		NoSegments  bool        `json:"no_segments,omitempty"`
	}{
		x.device, x.ordinal, x.Reserved, x.Requested, x.Rounding, x.Unsplit, x.Pending, x.Reclaimable, x.Pinned,
		x.pins, lines, x.holes, x.noSegments,
	})
}
