//go:build gc && (amd64 || arm64) && !nofp

package callstack

// walk follows the caller's frame pointers and writes the return addresses of at most limit frames to pcs, innermost first.
// hash is what hashWords gives for them when it starts with seed. n is the number of frames: limit, or fewer if the
// goroutine's first frame was reached, or 0 if the chain leads out of the goroutine's stack before that.
//
//go:noescape
func walk(pcs *uintptr, limit int, seed uint64) (n int, hash uint64)

// Goroutine returns the identity of the calling goroutine: a number that no other live goroutine has, the same as long as the
// goroutine lives. Another may get it afterwards. It is good for nothing but to compare.
func Goroutine() uintptr
