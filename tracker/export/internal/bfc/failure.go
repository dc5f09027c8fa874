package bfc

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Failure is one failure: what was asked for, and what a log tells of the pool at that moment. Its String and its JSON
// explain it.
type Failure struct {
	line      int // line number in the log
	allocator string
	grows     bool // it is no failure: the log tells only how the pool grew

	requested alloc.Bytes // rounded up; -1 if the log has it only in words
	words     string      // the size as the log prints it: "3.07GiB"
	operation string      // that asked

	chunks     []chunk
	regions    []alloc.Bytes // as the log prints them
	extents    []alloc.Bytes // the sizes by which an arena of ONNX Runtime grew
	given      alloc.Bytes   // back by the arena, when it shrank
	byExecutor bool          // of ONNX Runtime: what the exception says again is the same failure
	bySize     map[alloc.Bytes]int64

	pool, limit, inUse, available alloc.Bytes // -1 is not known
	occupancy                     string      // a map of the pool in 100 letters
	peak                          []peakBuffer
}

func newFailure(line int) *Failure {
	return &Failure{line: line, requested: -1, pool: -1, limit: -1, inUse: -1, available: -1, bySize: make(map[alloc.Bytes]int64)}
}

// reserved returns what a pool has besides the sizes by which it grew: memory for weights, and what it had before the log
// began. It is 0 if that is not known.
func (d *Failure) reserved() alloc.Bytes {
	if len(d.extents) == 0 || d.pool < 0 {
		return 0
	}
	rest := d.pool + d.given
	for _, n := range d.extents {
		rest -= n
	}
	return max(0, rest)
}

// chunk is a piece of a region.
type chunk struct {
	ptr    alloc.Ptr
	size   alloc.Bytes
	used   bool
	name   string // name of the operation, if the log has it
	region int    // how many were printed before it
}

func (c *chunk) end() alloc.Ptr { return c.ptr + alloc.Ptr(c.size) }

// peakBuffer is a buffer that XLA lists for a compiled program. XLA prints its size rounded.
type peakBuffer struct {
	Size      string `json:"size"`
	Shape     string `json:"shape,omitempty"`
	Operation string `json:"operation,omitempty"`
	File      string `json:"file,omitempty"`
	Line      int    `json:"line,omitempty"`
}

// least returns the fewest bytes that the request can have had. The words are cut, not rounded.
func (d *Failure) least() alloc.Bytes {
	if d.requested >= 0 {
		return d.requested
	}
	number := strings.TrimRight(d.words, "KMGTPEiB")
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f < 0 || f >= 1<<20 {
		return -1
	}
	unit := alloc.Bytes(1)
	if rest := d.words[len(number):]; rest != "B" && rest != "" {
		i := strings.IndexByte("KMGTPE", rest[0])
		if i < 0 || i > 3 {
			return -1
		}
		unit <<= 10 * (i + 1)
	}
	return alloc.Bytes(f * float64(unit))
}

// tally counts the chunks that are in use or, if used is false, those that are not.
func (d *Failure) tally(used bool) (count int64, bytes, largest alloc.Bytes) {
	for i := range d.chunks {
		if c := &d.chunks[i]; c.used == used {
			count++
			bytes += c.size
			largest = max(largest, c.size)
		}
	}
	return count, bytes, largest
}

// runs returns the chunks as pieces without gaps, each within one region and sorted by address. It
// leaves out a chunk that overlaps another, as happens with two dumps in one log, and counts these.
func (d *Failure) runs() (out [][]chunk, overlapping int) {
	sorted := slices.Clone(d.chunks)
	slices.SortStableFunc(sorted, func(a, b chunk) int { return cmp.Compare(a.ptr, b.ptr) })
	var run []chunk
	end := alloc.Ptr(0)
	for _, c := range sorted {
		switch {
		case len(run) > 0 && c.ptr < end:
			overlapping++
			continue
		case len(run) > 0 && (c.ptr != end || c.region != run[0].region):
			out, run = append(out, run), nil
		}
		run, end = append(run, c), c.end()
	}
	if len(run) > 0 {
		out = append(out, run)
	}
	return out, overlapping
}

// missing lists what the log does not say about the failure, and where it contradicts itself.
func (d *Failure) missing() (out []string) {
	_, used, _ := d.tally(true)
	_, free, _ := d.tally(false)
	sum := alloc.Bytes(0)
	for size, count := range d.bySize {
		sum += size * alloc.Bytes(count)
	}
	regions := alloc.Bytes(0)
	for _, r := range d.regions {
		regions += r
	}
	if d.requested < 0 && d.words == "" && !d.grows {
		out = append(out, "what was asked for")
	} else if d.requested < 0 && !d.grows {
		out = append(out, "the exact size of the request")
	}
	switch {
	case len(d.chunks) == 0 && len(d.bySize) > 0:
		out = append(out, "the chunks: only those in use, by size")
	case len(d.chunks) == 0:
		out = append(out, "the chunks")
	case regions > used+free:
		out = append(out, (regions-used-free).String()+" of the regions")
	case d.pool > used+free:
		out = append(out, (d.pool-used-free).String()+" of the pool")
	case d.inUse > used:
		out = append(out, (d.inUse-used).String()+" that were in use")
	case sum > used:
		out = append(out, (sum-used).String()+" that were in use, by its summary")
	case d.pool < 0 && len(d.regions) == 0 && d.inUse < 0 && len(d.bySize) == 0:
		out = append(out, "how large the pool is: these chunks may be a part of it")
	}
	if _, overlapping := d.runs(); overlapping > 0 {
		out = append(out, "a clear order: "+strconv.Itoa(overlapping)+" chunks lie over others and are left out, as if two dumps were mixed")
	}
	return out
}
