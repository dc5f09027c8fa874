package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// The sizes of PyTorch's scheme, from c10/cuda/CUDACachingAllocator.cpp, where
// they are named kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc,
// kLargeBuffer and kRoundLarge.
const (
	blockUnit    = 512 * alloc.B  // all blocks are multiples of it
	smallLimit   = 1 * alloc.MiB  // the largest small block handed out
	smallSegment = 2 * alloc.MiB  // the segments that small blocks are cut from
	largeLimit   = 10 * alloc.MiB // from here on, a request has a segment of its own
	largeSegment = 20 * alloc.MiB // the segments for large blocks below the limit
	segmentUnit  = 2 * alloc.MiB  // a segment of one request's own is a multiple of it
)

// maxRequest is the largest request that can be rounded. No device has as much.
const maxRequest = alloc.MaxBytes - segmentUnit

// blockSize returns the size of the block that serves a request of n bytes.
func blockSize(n alloc.Bytes) alloc.Bytes { return roundUp(max(n, 1), blockUnit) }

// poolOf returns the pool that serves blocks of a size.
func poolOf(size alloc.Bytes) alloc.Pool {
	if size <= smallLimit {
		return alloc.SmallPool
	}
	return alloc.LargePool
}

// segmentSize returns the size of the segment that the driver is asked for when
// no block of the size is cached.
func segmentSize(size alloc.Bytes) alloc.Bytes {
	switch {
	case size <= smallLimit:
		return smallSegment
	case size < largeLimit:
		return largeSegment
	default:
		return roundUp(size, segmentUnit)
	}
}

// poolSplits reports whether a block of which that much remains is split.
func poolSplits(p alloc.Pool, remaining alloc.Bytes) bool {
	if p == alloc.SmallPool {
		return remaining >= blockUnit
	}
	return remaining > smallLimit
}

// roundUp rounds up to a multiple of unit, a power of two, n of at most maxRequest.
func roundUp(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) &^ (unit - 1) }
