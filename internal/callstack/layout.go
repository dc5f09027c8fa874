//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"runtime"
	"slices"
)

// The layout of runtime.g, which the assembly reads, belongs to the Go runtime and may change with any release.
// So it is checked once, when the program begins. Where it is not as expected, runtime.Callers and
// runtime.Stack do the work.

const (
	stackLo = 0 // offset in runtime.g of the lower bound of the goroutine's stack, which runtime/cgo relies on too
	stackHi = 8 // of the upper one

	searched = 256 // bytes of runtime.g, of some 450, where the goroutine's number is looked for
)

var (
	walks  = boundsHold(0) && walkHolds()
	goidAt = findGoid(searched) // offset in runtime.g of the goroutine's number; 0 if it was not found
)

// boundsHold reports whether runtime.g has the bounds of its stack at stackLo and stackHi, each moved by some
// bytes, as tests do. The stack of a new goroutine begins at the upper bound, and both bounds follow when it
// grows and moves.
func boundsHold(moved uintptr) (ok bool) {
	wait(func() { ok = enclosed(moved, 1) })
	return ok
}

// enclosed takes a kibibyte of stack at each of 16 levels, which makes it grow.
//
//go:noinline
func enclosed(moved, level uintptr) bool {
	var ballast [1024]byte
	lo, hi, sp := bounds(stackLo+moved, stackHi+moved)
	ok := lo < sp && sp < hi && hi-sp < 2*level*uintptr(len(ballast)) && hi-lo < 1<<20
	if ok && level < 16 {
		ok = enclosed(moved, level+1)
	}
	runtime.KeepAlive(&ballast)
	return ok
}

// walkHolds reports whether a walk finds the frames that runtime.Callers reports.
func walkHolds() (ok bool) {
	wait(func() { ok = walkHere(8) })
	return ok
}

//go:noinline
func walkHere(level int) bool {
	if level > 0 {
		return walkHere(level - 1)
	}
	var walked, stack [32]uintptr
	n, _ := walk(&walked[0], nil, len(walked), 0)
	return new(symbols).determines(walked[:n], stack[:runtime.Callers(2, stack[:])])
}

// findGoid returns the one offset below end at which each of several goroutines finds its number in runtime.g, or 0.
func findGoid(end uintptr) uintptr {
	var places []uintptr
	for at := uintptr(0); at < end; at += 8 {
		places = append(places, at)
	}
	for range 3 {
		wait(func() {
			number := tracedGoroutine()
			places = slices.DeleteFunc(places, func(at uintptr) bool { return word(at) != number })
		})
	}
	if len(places) != 1 {
		return 0
	}
	return places[0]
}

// wait runs f on a goroutine of its own.
func wait(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}
