package attach

// Where struct pt_regs has what the probes read, in bytes.
var argumentRegs = [6]int16{112, 104, 96, 88, 72, 64} // di, si, dx, cx, r8, r9

const (
	resultReg  = 80
	stackReg   = 152
	popsReturn = 8 // a return takes the return address off the stack
)
