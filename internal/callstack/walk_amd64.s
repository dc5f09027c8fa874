//go:build gc && !nofp

#include "textflag.h"

// A frame record is two words: the caller's frame pointer, and above it the return address. runtime.g starts with
// the bounds of its stack, which runtime/cgo relies on too; should they not be there in some later Go, the stack pointer
// is not between them, and walk finds nothing. Nothing moves the stack here: assembly is not preempted asynchronously, and
// NOSPLIT leaves out the check in the prologue.

// func walk(pcs *uintptr, limit int, seed uint64) (n int, hash uint64)
TEXT ·walk(SB), NOSPLIT, $0-40
	MOVQ pcs+0(FP), DI
	MOVQ limit+8(FP), CX
	MOVQ seed+16(FP), DX
	MOVQ (TLS), R8
	MOVQ 8(R8), R10 // g.stack.hi
	MOVQ SP, R9     // the record must lie above this: the stack pointer, then the record before
	MOVQ $0x9E3779B97F4A7C15, R11
	MOVQ BP, AX
	XORL BX, BX
	CMPQ R9, 0(R8)  // g.stack.lo
	JLS  done
	SUBQ $16, R10   // highest address of a record

next:
	CMPQ  AX, R9
	JLS   end
	CMPQ  AX, R10
	JHI   end
	MOVQ  8(AX), SI
	MOVQ  AX, R9
	MOVQ  (AX), AX
	MOVQ  SI, (DI)(BX*8)
	XORQ  SI, DX
	IMULQ R11, DX
	INCQ  BX
	CMPQ  BX, CX
	JLT   next

done:
	MOVQ BX, n+24(FP)
	MOVQ DX, hash+32(FP)
	RET

end:
	TESTQ AX, AX // the goroutine's first frame has no caller
	JEQ   done
	XORL  BX, BX
	JMP   done

// func Goroutine() uintptr
TEXT ·Goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
