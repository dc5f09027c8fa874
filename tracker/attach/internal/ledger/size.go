package ledger

import (
	"math"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// sizeOf returns the size that a call asked for.
func sizeOf(f event.Function, e *event.Event) alloc.Bytes {
	size := e.Args[f.Size]
	switch f.Effect {
	case event.AllocatesPitched: // the pitch is known after a success
		size = product(max(e.Pitch, e.Args[2]), e.Args[3])
	case event.AllocatesArray: // CUDA_ARRAY_DESCRIPTOR
		size = product(e.Desc[0], max(1, e.Desc[1]), elementSize(e.Desc[2]))
	case event.AllocatesArray3D: // CUDA_ARRAY3D_DESCRIPTOR
		size = product(e.Desc[0], max(1, e.Desc[1]), max(1, e.Desc[2]), elementSize(e.Desc[3]))
	case event.AllocatesMipmapped:
		size = MipmappedSize(e.Desc, uint32(e.Args[2]))
	case event.Imports, event.ImportsPhysical:
		size = 0
	}
	return alloc.Bytes(min(size, math.MaxInt64))
}

// MipmappedSize sums the levels of an array: each has half the edges of the one before, and as many
// layers or faces of a cube.
func MipmappedSize(desc [5]uint64, levels uint32) (size uint64) {
	const layered, cubemap = 1, 4
	each := desc[4]&(layered|cubemap) == 0
	for level := range min(levels, 64) {
		depth := desc[2]
		if each {
			depth >>= level
		}
		of := product(max(1, desc[0]>>level), max(1, desc[1]>>level), max(1, depth), elementSize(desc[3]))
		if size += of; size < of {
			return math.MaxUint64
		}
	}
	return size
}

// elementSize returns the bytes of one element of an array, given its CUarray_format and, in the
// upper half, its number of channels. It returns 0 for a format without a fixed size, such as those
// of videos.
func elementSize(formatAndChannels uint64) uint64 {
	channels := formatAndChannels >> 32
	switch uint32(formatAndChannels) {
	case 0x01, 0x08: // 8 bits
		return channels
	case 0x02, 0x09, 0x10: // 16 bits, and half
		return 2 * channels
	case 0x03, 0x0a, 0x20: // 32 bits, and float
		return 4 * channels
	}
	return 0
}

// product multiplies, and saturates at the largest number.
func product(factors ...uint64) uint64 {
	n := uint64(1)
	for _, f := range factors {
		high, low := bits.Mul64(n, f)
		if high != 0 {
			return math.MaxUint64
		}
		n = low
	}
	return n
}
