package probes

import (
	"bytes"
	"strings"
)

// noteRegs are the byte offsets in struct pt_regs of the registers that the note of a static probe may name, except ah, bh, ch and dh.
var noteRegs = func() map[string]uint16 {
	at := make(map[string]uint16)
	for i, names := range []string{
		"r15 r15d r15w r15b", "r14 r14d r14w r14b", "r13 r13d r13w r13b", "r12 r12d r12w r12b", "rbp ebp bp bpl", "rbx ebx bx bl",
		"r11 r11d r11w r11b", "r10 r10d r10w r10b", "r9 r9d r9w r9b", "r8 r8d r8w r8b", "rax eax ax al", "rcx ecx cx cl", "rdx edx dx dl",
		"rsi esi si sil", "rdi edi di dil",
	} {
		for name := range strings.FieldsSeq(names) {
			at[name] = uint16(8 * i)
		}
	}
	at["rsp"], at["rip"] = 152, 128
	return at
}()

// emulated returns the offset of an instruction, given the first bytes of a function, that the
// kernel emulates at a probe. It executes most others out of line, with another trap, which costs
// four times as much. The result is 0 unless nothing before that instruction changes the stack or a
// register, and nothing jumps to it.
func emulated(code []byte) int {
	endbr64, compare := []byte{0xf3, 0x0f, 0x1e, 0xfa}, []byte{0x81, 0x3d} // of a word by its distance, with a constant
	const compareSize = 10
	at := len(code) - len(bytes.TrimPrefix(code, endbr64))
	if compared := at + compareSize; bytes.HasPrefix(code[at:], compare) && len(code) > compared && code[compared]&0xf0 == 0x70 {
		return compared // a conditional jump: the functions of NVIDIA's driver begin so, at least from 535 to 550
	}
	if next := bytes.TrimPrefix(code[at:], []byte{0x41}); len(next) > 0 && next[0]&0xf8 == 0x50 {
		return at // a push
	}
	return 0
}
