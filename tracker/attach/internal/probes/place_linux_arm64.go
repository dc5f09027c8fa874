package probes

var noteRegs map[string]uint16 // notes are not read on arm64

// emulated is used on amd64 only.
func emulated([]byte) int { return 0 }
