package callstack

import (
	"bytes"
	"runtime"
	"strconv"
)

// tracedGoroutine is the number of the calling goroutine as a trace has it, in its first line: "goroutine 18
// [running]:". The runtime gives it nowhere else.
func tracedGoroutine() uint64 {
	var buf [64]byte
	line := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(line, []byte(" "))
	number, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("callstack: runtime.Stack names no goroutine: " + string(line))
	}
	return number
}
