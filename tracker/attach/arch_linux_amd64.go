package attach

import "github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"

// Byte offsets in struct pt_regs of the registers that the probes read.
var argumentRegs = [6]int16{112, 104, 96, 88, 72, 64} // di, si, dx, cx, r8, r9

const (
	resultReg  = 80
	stackReg   = 152
	popsReturn = 8 // a return takes the return address off the stack
)

// savedRegs are the registers that unwinding starts from: DWARF's number, and the byte offset in
// struct pt_regs. The first gives the return address.
var savedRegs = []savedReg{{16, 128}, {7, 152}, {6, 32}, {3, 40}, {12, 24}, {13, 16}, {14, 8}, {15, 0}}

var machine = unwind.AMD64
