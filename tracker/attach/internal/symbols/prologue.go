package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// maxPrologue is how many bytes of a function are examined.
const maxPrologue = 32

// setsFramePointer reports whether a function that begins with these bytes sets a frame pointer.
// One that does so later is not recognized.
func setsFramePointer(m elf.Machine, code []byte) bool {
	switch m {
	case elf.EM_X86_64:
		code, saved := bytes.CutPrefix(bytes.TrimPrefix(code, []byte{0xf3, 0x0f, 0x1e, 0xfa}), []byte{0x55})               // endbr64; push rbp
		return saved && (bytes.Contains(code, []byte{0x48, 0x89, 0xe5}) || bytes.Contains(code, []byte{0x48, 0x8b, 0xec})) // mov rbp, rsp: gcc puts others first
	case elf.EM_AARCH64:
		saved := false
		for ; len(code) >= 4; code = code[4:] {
			word := binary.LittleEndian.Uint32(code)
			switch {
			case word&0xfe407fff == 0xa8007bfd: // stp x29, x30, [sp ...]
				saved = true
			case word&0xffc003ff == 0x910003fd: // mov x29, sp, or add x29, sp, #n
				return saved
			}
		}
	}
	return false
}
