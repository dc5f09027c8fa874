//go:build gc && (amd64 || arm64) && !nofp

package callstack

// walk follows the caller's frame pointers and writes the return addresses of at most limit frames to pcs, innermost first,
// and the addresses of the frame records to records, unless that is nil. hash is what hashWords gives for the return addresses
// when it starts with seed. n is the number of frames: limit, or fewer if the goroutine's first frame was reached, or 0 if the
// chain leads out of the goroutine's stack before that.
//
//go:noescape
func walk(pcs, records *uintptr, limit int, seed uint64) (n int, hash uint64)

// predict finds the stack of its caller, Capture, without a walk, if it knows it. From frame to frame a walk waits for memory,
// as each record tells where the next one is. A key tells of all records at once, since those of the same calls lie at the same
// distances from each other. So predict takes the key that some of the frames lead to, and checks that each record links to the
// next and has the key's return address: that is all that a walk would read. Then id is the key's stack; otherwise it is 0, and
// slot is where the key that a walk finds is to be kept, or -1 for nowhere. Only one of 64 replaces another, so that stacks that
// take turns in a slot cost little.
//
//go:noescape
func predict(recent *recentKeys, skip int) (id ID, slot int)

// bounds returns the words at two offsets in the goroutine's runtime.g, and the stack pointer, all of one instant.
func bounds(loAt, hiAt uintptr) (lo, hi, sp uintptr)

// word returns the word at an offset in the goroutine's runtime.g.
func word(offset uintptr) uint64
