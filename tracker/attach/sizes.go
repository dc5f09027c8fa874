package attach

import (
	"math"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// sizeOf is what a call asked for.
func sizeOf(f function, e *event) alloc.Bytes {
	size := e.args[f.size]
	switch f.effect {
	case allocatesPitched: // the pitch is known once it succeeded
		size = product(max(e.pitch, e.args[2]), e.args[3])
	case allocatesArray: // CUDA_ARRAY_DESCRIPTOR
		size = product(e.desc[0], max(1, e.desc[1]), elementSize(e.desc[2]))
	case allocatesArray3D: // CUDA_ARRAY3D_DESCRIPTOR
		size = product(e.desc[0], max(1, e.desc[1]), max(1, e.desc[2]), elementSize(e.desc[3]))
	case allocatesMipmapped:
		size = mipmappedSize(e.desc, uint32(e.args[2]))
	case imports, importsPhysical:
		size = 0
	}
	return alloc.Bytes(min(size, uint64(alloc.MaxBytes)))
}

// mipmappedSize adds up the levels of an array, each with half the edges of the one before.
// Layers, and the faces of a cube, are as many on each.
func mipmappedSize(desc [5]uint64, levels uint32) (size uint64) {
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

// elementSize is the bytes of an array's element, by its CUarray_format and, in the upper
// half, its channels. 0 is a format that has no such size, such as those of videos.
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

// product multiplies; what does not fit is the largest number.
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
