package attach

import "github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"

// Byte offsets in struct user_pt_regs of the registers that the probes read.
var argumentRegs = [6]int16{0, 8, 16, 24, 32, 40}

const (
	resultReg  = 0
	stackReg   = 248
	popsReturn = 0
)

// savedRegs are the registers that tell where callers are: DWARF's number, and the place. The first is that of the
// return address: where the probe is, the function has returned.
var savedRegs = []savedReg{
	{30, 256}, {31, 248}, {29, 232}, {19, 152}, {20, 160}, {21, 168}, {22, 176}, {23, 184}, {24, 192}, {25, 200}, {26, 208}, {27, 216}, {28, 224},
}

var noteRegs map[string]int16 // notes of probes are not read here

var machine = unwind.ARM64
