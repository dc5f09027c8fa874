package alloc

// The sizes of PyTorch's scheme, from c10/cuda/CUDACachingAllocator.cpp, where
// they are named kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc,
// kLargeBuffer and kRoundLarge.
const (
	blockUnit    = 512 * B  // all blocks are multiples of it
	smallLimit   = 1 * MiB  // the largest small block handed out
	smallSegment = 2 * MiB  // the segments that small blocks are cut from
	largeLimit   = 10 * MiB // from here on, a request has a segment of its own
	largeSegment = 20 * MiB // the segments for large blocks below the limit
	segmentUnit  = 2 * MiB  // a segment of one request's own is a multiple of it
)

// maxRequest is the largest request that can be rounded. No device has as much.
const maxRequest = MaxBytes - segmentUnit

// Pool is one of the two sets of segments.
type Pool uint8

// The pools.
const (
	SmallPool Pool = iota + 1 // requests up to 1 MiB
	LargePool                 // the others
)

// String returns "small" or "large".
func (p Pool) String() string {
	switch p {
	case SmallPool:
		return "small"
	case LargePool:
		return "large"
	}
	return "unknown"
}

// blockSize returns the size of the block that serves a request of n bytes.
func blockSize(n Bytes) Bytes { return roundUp(max(n, 1), blockUnit) }

// poolOf returns the pool that serves blocks of a size.
func poolOf(size Bytes) Pool {
	if size <= smallLimit {
		return SmallPool
	}
	return LargePool
}

// segmentSize returns the size of the segment that the driver is asked for when
// no block of the size is cached.
func segmentSize(size Bytes) Bytes {
	switch {
	case size <= smallLimit:
		return smallSegment
	case size < largeLimit:
		return largeSegment
	default:
		return roundUp(size, segmentUnit)
	}
}

// splits reports whether a block of which that much remains is split.
func (p Pool) splits(remaining Bytes) bool {
	if p == SmallPool {
		return remaining >= blockUnit
	}
	return remaining > smallLimit
}

// roundUp rounds up to a multiple of unit, a power of two, n of at most maxRequest.
func roundUp(n, unit Bytes) Bytes { return (n + unit - 1) &^ (unit - 1) }
