package attach

// Where struct user_pt_regs has what the probes read, in bytes.
var argumentRegs = [6]int16{0, 8, 16, 24, 32, 40}

const (
	resultReg  = 0
	stackReg   = 248
	popsReturn = 0
)
