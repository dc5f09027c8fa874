package cache

import (
	"cmp"
	"math"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// The sizes of PyTorch's scheme, from c10/cuda/CUDACachingAllocator.cpp, where
// they are named kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc,
// kLargeBuffer and kRoundLarge.
const (
	blockUnit    = alloc.Bytes(512) // all block sizes are multiples of this
	smallLimit   = 1 * alloc.MiB    // the largest small block
	smallSegment = 2 * alloc.MiB    // the segments that small blocks are cut from
	largeLimit   = 10 * alloc.MiB   // a request of this size or more gets its own segment
	largeSegment = 20 * alloc.MiB   // the segments for large blocks below the limit, unless a Config has another size
	segmentUnit  = 2 * alloc.MiB    // the size of such a segment is a multiple of this
)

// maxRequest is the largest request that can be rounded. No device has as much.
const maxRequest = math.MaxInt64 - segmentUnit

// rounding decides how large a request's block is.
type rounding struct {
	parts [16]int // see Config.Roundup
	some  bool    // they say something
}

// blockSize returns the size of the block for a request of n bytes. If no device can serve that
// many, it returns a size that no block has.
func (r *rounding) blockSize(n alloc.Bytes) alloc.Bytes {
	if n > maxRequest {
		return math.MaxInt64
	}
	if r.some {
		return r.roundedUp(n)
	}
	return blockSize(n)
}

func (r *rounding) roundedUp(n alloc.Bytes) alloc.Bytes {
	if n < blockUnit || n >= 1<<47 { // no device has as much
		return blockSize(n)
	}
	step := bits.Len64(uint64(n)) - 1 // 2^step is the power of two below
	parts := r.parts[min(max(step-20, 0), len(r.parts)-1)]
	if parts <= 1 || n <= blockUnit*alloc.Bytes(parts) {
		return blockSize(n)
	}
	return roundUp(n, max(alloc.Bytes(1)<<step/alloc.Bytes(parts), 1))
}

// fitting decides whether a free block serves a request, and whether the rest of the block is cut
// off.
type fitting struct {
	maxSplit    alloc.Bytes // math.MaxInt64 if there is no limit
	maxRounding alloc.Bytes
	segment     alloc.Bytes // segment size for large blocks below largeLimit, and chunk size of an expandable segment

	noSplitFrom  alloc.Bytes    // blocks for requests of this size or more are not cut
	minRemainder [2]alloc.Bytes // for each pool, the least remainder for which a block is split
}

// newFitting returns the rules for a cache that grows by segments.
func newFitting(cfg Config) fitting {
	f := fitting{
		maxSplit:    cmp.Or(cfg.MaxSplitSize, math.MaxInt64),
		maxRounding: cmp.Or(cfg.MaxNonSplitRounding, max(largeSegment, cfg.largeSegmentSize)),
		segment:     cfg.largeSegment(),
	}
	f.noSplitFrom = f.maxSplit
	f.minRemainder[small], f.minRemainder[large] = blockUnit, smallLimit+1
	return f
}

// serves reports whether the block that fits best serves a request that needs a size.
func (f *fitting) serves(b *block, size alloc.Bytes) bool {
	if size < f.maxSplit {
		return b.size < f.maxSplit // larger ones are kept for large requests
	}
	return b.size-size < f.maxRounding // more would be left unused
}

// splits reports whether a block is cut for a request that needs a size.
func (f *fitting) splits(b *block, size alloc.Bytes) bool {
	return b.size-size >= f.minRemainder[b.pool] && size < f.noSplitFrom
}

// blockSize is the size of a block by default.
func blockSize(n alloc.Bytes) alloc.Bytes { return roundUp(max(n, 1), blockUnit) }

// poolOf returns the pool that serves blocks of a size.
func poolOf(size alloc.Bytes) pool {
	if size <= smallLimit {
		return small
	}
	return large
}

// segmentSize returns the size of the segment that the driver is asked for when
// no block of the size is cached.
func (f *fitting) segmentSize(size alloc.Bytes) alloc.Bytes {
	switch {
	case size <= smallLimit:
		return smallSegment
	case size < largeLimit:
		return f.segment
	default:
		return roundUp(size, segmentUnit)
	}
}

// roundUp rounds up to a multiple of unit, a power of two, n of at most maxRequest.
func roundUp(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) &^ (unit - 1) }
