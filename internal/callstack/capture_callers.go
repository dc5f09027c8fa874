//go:build !gc || !(amd64 || arm64) || nofp

package callstack

import (
	"bytes"
	"runtime"
	"strconv"
)

// Capture returns the ID of the calling goroutine's stack. With skip 0 the first frame is the call to Capture; each
// increment leaves out one more logical frame; a negative skip counts as 0. It returns Overflow for a stack that found the
// table full.
func (t *Table) Capture(skip int) ID {
	var pcs [MaxDepth]uintptr
	return t.Intern(pcs[:runtime.Callers(max(skip, 0)+2, pcs[:t.depth])])
}

// Goroutine returns the identity of the calling goroutine: a number that no other live goroutine has, the same as long as the
// goroutine lives. Another may get it afterwards. It is good for nothing but to compare.
func Goroutine() uintptr {
	// The runtime tells it nowhere but in the first line of a trace: "goroutine 18 [running]:".
	var buf [64]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(line, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("callstack: runtime.Stack names no goroutine: " + string(line))
	}
	return uintptr(id)
}
