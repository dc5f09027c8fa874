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
	nextReg    = 256 // the program counter: where a probe is at a function's return, the function has returned
	popsReturn = 0
	linkReg    = 240 // has the return address at a function's beginning
)

var noteRegs map[string]int16 // notes of probes are not read here

// machine has addresses as far up as the kernel lets programs have them: it puts their first stacks, where it leaves random bytes, at the top.
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

// emulated is of use on amd64.
func emulated([]byte) int { return 0 }
