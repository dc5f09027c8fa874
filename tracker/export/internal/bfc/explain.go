package bfc

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

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
	Ptr    alloc.Ptr    `json:"address"` // where the room would begin
	Room   alloc.Bytes  `json:"room_bytes"`
	InUse  mem.Tally    `json:"in_use"`
	Chunks []*neighbour `json:"chunks"` // the first ones
}

// barrierTo finds the place where the fewest bytes in use keep a request out; nil if no region is as large.
func barrierTo(runs [][]chunk, request alloc.Bytes) *barrier {
	var least *barrier
	for _, run := range runs {
		var room alloc.Bytes
		var used mem.Tally
		from := 0
		for to := range run {
			room += run[to].size
			if run[to].used {
				used = used.Add(mem.Tally{Count: 1, Bytes: run[to].size})
			}
			for room-run[from].size >= request {
				room -= run[from].size
				if run[from].used {
					used = used.Sub(mem.Tally{Count: 1, Bytes: run[from].size})
				}
				from++
			}
			if room >= request && (least == nil || used.Bytes < least.InUse.Bytes) {
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
	return &barrier{Ptr: run[from].ptr, Room: alloc.Bytes(run[to].end() - run[from].ptr), InUse: used, Chunks: standing(run[from : to+1])}
}

func standing(run []chunk) (out []*neighbour) {
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
	Fragmented *bool         `json:"fragmented"` // enough is free, but in pieces that are too small
	Barrier    *barrier      `json:"barrier"`    // what stands between the pieces
	Holes      []hole        `json:"holes"`      // the largest first
	Sizes      []sizeTally   `json:"sizes"`      // chunks in use, the most bytes first
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
		Peak: d.peak, Map: d.occupancy, Lacks: append([]string{}, d.lacks()...),
	}
	a.Regions = append(a.Regions, d.extents...)
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
