//go:build gc && (amd64 || arm64) && !nofp

package callstack

// walk follows the caller's frame pointers and writes the return addresses of at most limit frames to pcs, innermost first.
// hash is what hashWords gives for them when it starts with seed. n is the number of frames: limit, or fewer if the
// goroutine's first frame was reached, or 0 if the chain leads out of the goroutine's stack before that.
//
//go:noescape
func walk(pcs *uintptr, limit int, seed uint64) (n int, hash uint64)

// bounds returns the bounds of the goroutine's stack, read moved bytes beyond where walk reads them, and the stack pointer, all
// of one instant.
func bounds(moved uintptr) (lo, hi, sp uintptr)

// word returns the word at an offset in the goroutine's runtime.g.
func word(offset uintptr) uint64
