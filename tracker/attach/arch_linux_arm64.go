package attach

import (
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// Byte offsets in struct user_pt_regs of the registers that the probes read.
var argumentRegs = [6]int16{0, 8, 16, 24, 32, 40}

const (
	resultReg  = 0
	stackReg   = 248
	frameReg   = 232
	nextReg    = 256 // the program counter: at the return of a function, the return address
	popsReturn = 0
	linkReg    = 240 // the return address at the start of a function
)

var noteRegs map[string]int16 // notes are not read on arm64

// machine has the highest address of programs: the kernel puts their first stacks, with AT_RANDOM, at
// the top.
var machine = func() *unwind.Machine {
	const random = 25 // AT_RANDOM
	values, _ := unix.Auxv()
	for _, v := range values {
		if v[0] == random && v[1] != 0 {
			return unwind.ARM64.Below(uint64(v[1]))
		}
	}
	return unwind.ARM64
}()

// emulated is used on amd64 only.
func emulated([]byte) int { return 0 }
