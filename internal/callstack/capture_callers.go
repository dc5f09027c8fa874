//go:build !gc || !(amd64 || arm64) || nofp

package callstack

import "runtime"

// Capture returns the ID of the calling goroutine's stack. With skip 0 the first frame is the call to Capture; each
// increment leaves out one more logical frame; a negative skip counts as 0. It returns Overflow for a stack that found the
// table full.
func (t *Table) Capture(skip int) ID {
	var pcs [MaxDepth]uintptr
	return t.Intern(pcs[:runtime.Callers(max(skip, 0)+2, pcs[:t.depth])])
}

// Goroutine returns the number of the calling goroutine, which no other goroutine ever has. Use it
// only for comparison.
func Goroutine() uint64 { return tracedGoroutine() }
