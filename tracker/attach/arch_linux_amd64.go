package attach

import "github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"

// Where struct pt_regs has what the probes read, in bytes.
var argumentRegs = [6]int16{112, 104, 96, 88, 72, 64} // di, si, dx, cx, r8, r9

const (
	resultReg  = 80
	stackReg   = 152
	popsReturn = 8 // a return takes the return address off the stack
)

// savedRegs are the registers that tell where callers are: DWARF's number, and the place. The first is that of the
// return address: where the probe is, the function has returned.
var savedRegs = []savedReg{{16, 128}, {7, 152}, {6, 32}, {3, 40}, {12, 24}, {13, 16}, {14, 8}, {15, 0}}

var machine = unwind.AMD64
