package attach

import "github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"

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

var machine = unwind.ARM64
