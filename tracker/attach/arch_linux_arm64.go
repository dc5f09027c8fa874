package attach

import (
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

var machine = unwind.Native

// emulated is used on amd64 only.
func emulated([]byte) int { return 0 }
