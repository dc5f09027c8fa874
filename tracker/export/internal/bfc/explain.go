package bfc

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// hole is a free chunk, and what stands beside it.
type hole struct {
	Ptr    alloc.Ptr   `json:"address"`
	Bytes  alloc.Bytes `json:"bytes"`
	Before *neighbour  `json:"before"` // nil at the edge of the known chunks
	After  *neighbour  `json:"after"`
}

// neighbour is a chunk in use.
type neighbour struct {
	Ptr   alloc.Ptr   `json:"address"`
	Bytes alloc.Bytes `json:"bytes"`
	Name  string      `json:"name,omitempty"`
}

func (n *neighbour) String() string {
	out := fmt.Sprintf("%v at %v", n.Bytes, n.Ptr)
	if n.Name != "" {
		out += " (" + text.Line(n.Name) + ")"
	}
	return out
}

// holes returns the free chunks, the largest first.
func holes(runs [][]chunk) (out []hole) {
	at := func(run []chunk, i int) *neighbour {
		if i < 0 || i >= len(run) || !run[i].used {
			return nil
		}
		return &neighbour{run[i].ptr, run[i].size, run[i].name}
	}
	for _, run := range runs {
		for i, c := range run {
			if !c.used {
				out = append(out, hole{c.ptr, c.size, at(run, i-1), at(run, i+1)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b hole) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}

// barrier is the smallest obstacle to a request: the chunks in use among neighbours whose memory
// together would serve it.
type barrier struct {
	Ptr    alloc.Ptr    `json:"address"` // of the piece that would be free without the chunks
	Space  alloc.Bytes  `json:"room_bytes"`
	InUse  mem.Tally    `json:"in_use"`
	Chunks []*neighbour `json:"chunks"` // the first ones
}

// barrierTo finds the place where the fewest bytes in use keep a request out; nil if no region is as large.
func barrierTo(runs [][]chunk, request alloc.Bytes) *barrier {
	var least *barrier
	for _, run := range runs {
		var space alloc.Bytes
		var used mem.Tally
		from := 0
		for to := range run {
			space += run[to].size
			if run[to].used {
				used = used.Add(mem.Tally{Count: 1, Bytes: run[to].size})
			}
			for space-run[from].size >= request {
				space -= run[from].size
				if run[from].used {
					used = used.Sub(mem.Tally{Count: 1, Bytes: run[from].size})
				}
				from++
			}
			if space >= request && (least == nil || used.Bytes < least.InUse.Bytes) {
				least = newBarrier(run, from, to, used)
			}
		}
	}
	return least
}

// newBarrier returns the barrier that run[from] to run[to] are, both included, with the free chunks
// beside them.
func newBarrier(run []chunk, from, to int, used mem.Tally) *barrier {
	for from > 0 && !run[from-1].used {
		from--
	}
	for to+1 < len(run) && !run[to+1].used {
		to++
	}
	return &barrier{Ptr: run[from].ptr, Space: alloc.Bytes(run[to].end() - run[from].ptr), InUse: used, Chunks: usedChunks(run[from : to+1])}
}

// usedChunks returns the first chunks in use.
func usedChunks(run []chunk) (out []*neighbour) {
	const most = 20
	for _, c := range run {
		if c.used && len(out) < most {
			out = append(out, &neighbour{c.ptr, c.size, c.name})
		}
	}
	return out
}

// sizeTally is how much chunks of one size hold.
type sizeTally struct {
	Size  alloc.Bytes `json:"size_bytes"`
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
}

// inUseBySize returns the sizes with the most bytes in use, from the chunks or from the log's
// summary.
func (d *Failure) inUseBySize() (out []sizeTally) {
	counts := d.bySize
	if len(d.chunks) > 0 {
		counts = make(map[alloc.Bytes]int64)
		for _, c := range d.chunks {
			if c.used {
				counts[c.size]++
			}
		}
	}
	for size, count := range counts {
		out = append(out, sizeTally{size, count, size * alloc.Bytes(count)})
	}
	slices.SortFunc(out, func(a, b sizeTally) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Size, a.Size)) })
	return out
}

// account is a Failure with its explanation, as the JSON shows it. A nil field is unknown.
type account struct {
	Line       int           `json:"line"` // line number in the log
	Allocator  string        `json:"allocator,omitempty"`
	Requested  *alloc.Bytes  `json:"requested_bytes"`
	Words      string        `json:"requested_text,omitempty"`
	Operation  string        `json:"operation,omitempty"`
	InUse      *mem.Tally    `json:"in_use"`
	Free       *mem.Tally    `json:"free"`
	Largest    *alloc.Bytes  `json:"largest_free_bytes"`
	Regions    []alloc.Bytes `json:"regions"`
	Pool       *alloc.Bytes  `json:"pool_bytes"`
	Limit      *alloc.Bytes  `json:"limit_bytes"`
	Available  *alloc.Bytes  `json:"available_bytes,omitempty"` // that the limit leaves beyond the pool
	Reserved   alloc.Bytes   `json:"reserved_bytes,omitzero"`   // of the pool: for weights, or from before the log
	Shrunk     alloc.Bytes   `json:"shrunk_bytes,omitzero"`     // that the pool gave back
	Grew       bool          `json:"grew,omitempty"`            // it is no failure
	Fragmented *bool         `json:"fragmented"`                // enough is free, but in pieces that are too small
	Barrier    *barrier      `json:"barrier"`                   // what stands between the pieces
	Holes      []hole        `json:"holes"`                     // the largest first
	Sizes      []sizeTally   `json:"sizes"`                     // chunks in use, the most bytes first
	Peak       []peakBuffer  `json:"peak_buffers,omitempty"`
	Map        string        `json:"map,omitempty"`
	Lacks      []string      `json:"lacks"` // what the log does not tell
}

// most is how many holes and sizes an account names.
const most = 100

func known(n alloc.Bytes) *alloc.Bytes {
	if n < 0 {
		return nil
	}
	return &n
}

func (d *Failure) account() account {
	a := account{
		Line: d.line, Allocator: d.allocator, Requested: known(d.requested), Words: d.words, Operation: d.operation,
		Regions: append([]alloc.Bytes{}, d.regions...), Pool: known(d.pool), Limit: known(d.limit), Holes: []hole{}, Sizes: []sizeTally{},
		Peak: d.peak, Map: d.occupancy, Lacks: append([]string{}, d.missing()...),
	}
	a.Regions = append(a.Regions, d.extents...)
	a.Available, a.Reserved, a.Shrunk, a.Grew = known(d.available), d.reserved(), d.given, d.grows
	a.Sizes = append(a.Sizes, d.inUseBySize()...)
	a.Sizes = a.Sizes[:min(len(a.Sizes), most)]
	if len(d.chunks) == 0 {
		a.inUseOnly(d)
		return a
	}
	var used, free mem.Tally
	var largest alloc.Bytes
	used.Count, used.Bytes, _ = d.tally(true)
	free.Count, free.Bytes, largest = d.tally(false)
	a.InUse, a.Free, a.Largest = &used, &free, &largest
	runs, _ := d.runs()
	a.Holes = append(a.Holes, holes(runs)...)
	a.Holes = a.Holes[:min(len(a.Holes), most)]
	if least := d.least(); least > 0 {
		fragmented := free.Bytes >= least && largest < least
		a.Fragmented = &fragmented
		if fragmented {
			a.Barrier = barrierTo(runs, least)
		}
	}
	return a
}

// inUseOnly takes what is in use from the summary.
func (a *account) inUseOnly(d *Failure) {
	var used mem.Tally
	for size, count := range d.bySize {
		used = used.Add(mem.Tally{Count: count, Bytes: size * alloc.Bytes(count)})
	}
	if used.Count > 0 {
		a.InUse = &used
	}
}

// MarshalJSON writes all that is known, as docs/formats.md describes it.
func (d *Failure) MarshalJSON() ([]byte, error) { return json.Marshal(d.account()) }

// String explains the failure in some lines.
func (d *Failure) String() string {
	a := d.account()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", d.failed())
	a.writeLevels(&b, d)
	a.writeWhy(&b, d)
	a.writeHoles(&b)
	a.writeSizes(&b)
	a.writePeak(&b)
	if len(a.Lacks) > 0 {
		fmt.Fprintf(&b, "the log does not tell %s\n", strings.Join(a.Lacks, ", nor "))
	}
	return b.String()
}

// failed says what was asked for.
func (d *Failure) failed() string {
	name := "a BFC allocator"
	if d.allocator != "" {
		name = "allocator " + text.Line(d.allocator)
	}
	if d.grows {
		return fmt.Sprintf("line %d: %s grew; the log has no failure of it", d.line, name)
	}
	out := fmt.Sprintf("line %d: %s ran out of memory", d.line, name)
	switch {
	case d.requested >= 0:
		out += fmt.Sprintf(": %v requested (%d bytes)", d.requested, int64(d.requested))
	case d.words != "":
		out += fmt.Sprintf(": %s requested", text.Line(d.words))
	}
	if d.operation != "" {
		out += " by " + text.Line(d.operation)
	}
	return out
}

func (a *account) writeLevels(b *strings.Builder, d *Failure) {
	switch {
	case a.Free != nil:
		fmt.Fprintf(b, "pool: %v in use in %s, %s\n", a.InUse.Bytes, chunksOf(a.InUse.Count), a.free())
	case a.InUse != nil:
		fmt.Fprintf(b, "pool: %v in use in %s\n", a.InUse.Bytes, chunksOf(a.InUse.Count))
	case d.inUse >= 0:
		fmt.Fprintf(b, "pool: %v in use\n", d.inUse)
	}
	d.writeGrowth(b)
	if a.Pool != nil {
		fmt.Fprintf(b, "the pool has %v", *a.Pool)
		if a.Limit != nil {
			fmt.Fprintf(b, " of the %v that it may have", *a.Limit)
		}
		b.WriteString("\n")
	} else if a.Limit != nil {
		fmt.Fprintf(b, "the pool may have %v\n", *a.Limit)
	}
	if a.Free == nil && a.Map != "" {
		fmt.Fprintf(b, "its map shows %d %% free, in %d %% at most at one place; holes below 1 %% do not show\n", strings.Count(a.Map, "_"), longest(a.Map))
	}
}

// writeGrowth says what the size of an arena adds up from.
func (d *Failure) writeGrowth(b *strings.Builder) {
	if len(d.extents) == 0 {
		return
	}
	grew := d.pool - d.reserved() + d.given
	times := fmt.Sprintf("it grew %d times, by %v, at last by %v", len(d.extents), grew, d.extents[len(d.extents)-1])
	if len(d.extents) == 1 {
		times = fmt.Sprintf("it grew once, by %v", grew)
	}
	b.WriteString(times)
	if d.given > 0 {
		fmt.Fprintf(b, ", and gave %v back", d.given)
	}
	if n := d.reserved(); n > 0 {
		fmt.Fprintf(b, "; it had %v more, reserved for weights or from before the log", n)
	}
	b.WriteString("\n")
}

// free describes the free chunks.
func (a *account) free() string {
	if a.Free.Count == 0 {
		return "none free"
	}
	return fmt.Sprintf("%v free in %s, the largest of %v", a.Free.Bytes, chunksOf(a.Free.Count), *a.Largest)
}

// longest is the length of the longest free stretch of a map.
func longest(occupancy string) (most int) {
	for _, stretch := range strings.FieldsFunc(occupancy, func(r rune) bool { return r != '_' }) {
		most = max(most, len(stretch))
	}
	return most
}

// writeWhy says why the request failed.
func (a *account) writeWhy(b *strings.Builder, d *Failure) {
	least := d.least()
	switch {
	case a.Fragmented == nil:
	case *a.Fragmented:
		fmt.Fprintf(b, "fragmented: the %v that is free would do, but lies in pieces\n", a.Free.Bytes)
		a.writeBarrier(b)
	case a.Free.Bytes < least:
		fmt.Fprintf(b, "too little is free: %v is missing, whatever the order of the chunks\n", least-a.Free.Bytes)
	case len(a.Lacks) == 0 && *a.Largest >= least:
		fmt.Fprintf(b, "a free chunk of %v would do: the allocator may not have been allowed to split it\n", *a.Largest)
	}
	if d.available >= 0 && d.available < least && a.Fragmented == nil {
		fmt.Fprintf(b, "its limit leaves %v: %v too little\n", d.available, least-d.available)
	}
	if d.available > 0 && d.available >= least && least > 0 {
		fmt.Fprintf(b, "its limit leaves %v beyond the pool, which it did not get: the driver had less, or the pool grows in larger steps\n", d.available)
	}
}

// advice says in a sentence or two why the request failed and what holds most; "" if the log does not tell.
func (d *Failure) advice() string {
	a, least := d.account(), d.least()
	var words []string
	switch {
	case a.Fragmented == nil:
	case *a.Fragmented && a.Barrier == nil:
		words = append(words, fmt.Sprintf("The %v that is free would do, but lies in pieces, and no region is as large as the request.", a.Free.Bytes))
	case *a.Fragmented:
		words = append(words, fmt.Sprintf("The %v that is free would do, but lies in pieces. Least in the way is %v in %s, at %v: without it there is room for %v in one piece.",
			a.Free.Bytes, a.Barrier.InUse.Bytes, chunksOf(a.Barrier.InUse.Count), a.Barrier.Chunks[0].Ptr, a.Barrier.Space))
	case a.Free.Bytes < least:
		words = append(words, fmt.Sprintf("%v too much, whatever the order of the chunks.", least-a.Free.Bytes))
	}
	if len(a.Sizes) > 0 {
		words = append(words, fmt.Sprintf("Most is in use by %s of %v: %v.", chunksOf(a.Sizes[0].Count), a.Sizes[0].Size, a.Sizes[0].Bytes))
	}
	return strings.Join(words, " ")
}

func (a *account) writeBarrier(b *strings.Builder) {
	if a.Barrier == nil {
		b.WriteString("no region is as large as the request: no order of the chunks would make room\n")
		return
	}
	fmt.Fprintf(b, "least in the way: %v in use in %s, from %v on; without them there is room for %v in one piece\n",
		a.Barrier.InUse.Bytes, chunksOf(a.Barrier.InUse.Count), a.Barrier.Ptr, a.Barrier.Space)
	const most = 5
	for _, n := range a.Barrier.Chunks[:min(len(a.Barrier.Chunks), most)] {
		fmt.Fprintf(b, "  chunk of %v\n", n)
	}
	if more := a.Barrier.InUse.Count - most; more > 0 {
		fmt.Fprintf(b, "  and %d more\n", more)
	}
}

func (a *account) writeHoles(b *strings.Builder) {
	const most = 5
	for _, h := range a.Holes[:min(len(a.Holes), most)] {
		fmt.Fprintf(b, "hole of %v at %v", h.Bytes, h.Ptr)
		var beside []string
		for _, n := range []*neighbour{h.Before, h.After} {
			if n != nil {
				beside = append(beside, n.String())
			}
		}
		if len(beside) > 0 {
			fmt.Fprintf(b, ", beside chunks of %s", strings.Join(beside, " and "))
		}
		b.WriteString("\n")
	}
}

func (a *account) writeSizes(b *strings.Builder) {
	const most = 5
	for _, s := range a.Sizes[:min(len(a.Sizes), most)] {
		fmt.Fprintf(b, "in use: %v in %s of %v\n", s.Bytes, chunksOf(s.Count), s.Size)
	}
}

func (a *account) writePeak(b *strings.Builder) {
	const most = 5
	for _, p := range a.Peak[:min(len(a.Peak), most)] {
		fmt.Fprintf(b, "at its peak the compiled program holds %s", text.Line(p.Size))
		if p.Shape != "" {
			fmt.Fprintf(b, ", %s", text.Line(p.Shape))
		}
		if p.File != "" {
			fmt.Fprintf(b, ", of %s", text.Line(mem.Frame{Function: p.Operation, File: p.File, Line: p.Line}.String()))
		} else if p.Operation != "" {
			fmt.Fprintf(b, ", of %s", text.Line(p.Operation))
		}
		b.WriteString("\n")
	}
}

func chunksOf(n int64) string {
	if n == 1 {
		return "one chunk"
	}
	return fmt.Sprintf("%d chunks", n)
}
