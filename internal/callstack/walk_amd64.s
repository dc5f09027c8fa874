//go:build gc && !nofp

#include "go_asm.h"
#include "textflag.h"

// A frame record is two words: the caller's frame pointer, and above it the return address. What is read of runtime.g was
// checked, see layout.go. Nothing moves the stack here: assembly is not preempted asynchronously, and NOSPLIT leaves out the
// check in the prologue.

// func walk(pcs *uintptr, limit int, seed uint64) (n int, hash uint64)
TEXT ·walk(SB), NOSPLIT, $0-40
	MOVQ pcs+0(FP), DI
	MOVQ limit+8(FP), CX
	MOVQ seed+16(FP), DX
	MOVQ (TLS), R8
	MOVQ const_stackHi(R8), R10
	MOVQ SP, R9     // the record must lie above this: the stack pointer, then the record before
	MOVQ $0x9E3779B97F4A7C15, R11
	MOVQ BP, AX
	XORL BX, BX
	CMPQ R9, const_stackLo(R8)
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

// func bounds(moved uintptr) (lo, hi, sp uintptr)
TEXT ·bounds(SB), NOSPLIT, $0-32
	MOVQ (TLS), AX
	ADDQ moved+0(FP), AX
	MOVQ const_stackLo(AX), BX
	MOVQ const_stackHi(AX), CX
	MOVQ BX, lo+8(FP)
	MOVQ CX, hi+16(FP)
	MOVQ SP, sp+24(FP)
	RET

// func word(offset uintptr) uint64
TEXT ·word(SB), NOSPLIT, $0-16
	MOVQ (TLS), AX
	ADDQ offset+0(FP), AX
	MOVQ (AX), AX
	MOVQ AX, ret+8(FP)
	RET
