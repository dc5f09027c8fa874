//go:build gc && !nofp

#include "go_asm.h"
#include "textflag.h"

// A frame record is two words: the caller's frame pointer, and above it the return address. What is read of runtime.g was
// checked, see layout.go. Nothing moves the stack here: assembly is not preempted asynchronously, and NOSPLIT leaves out the
// check in the prologue.

// func walk(pcs, records *uintptr, limit int, seed uint64) (n int, hash uint64)
TEXT ·walk(SB), NOSPLIT, $0-48
	MOVQ pcs+0(FP), DI
	MOVQ records+8(FP), R12
	MOVQ limit+16(FP), CX
	MOVQ seed+24(FP), DX
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
	TESTQ R12, R12
	JEQ   follow
	MOVQ  AX, (R12)
	ADDQ  $8, R12

follow:
	MOVQ  (AX), AX
	MOVQ  SI, (DI)(BX*8)
	XORQ  SI, DX
	IMULQ R11, DX
	INCQ  BX
	CMPQ  BX, CX
	JLT   next

done:
	MOVQ BX, n+32(FP)
	MOVQ DX, hash+40(FP)
	RET

end:
	TESTQ AX, AX // the goroutine's first frame has no caller
	JEQ   done
	XORL  BX, BX
	JMP   done

// MIX goes from the record at AX to the next, if that lies within the stack, and mixes its return address into DX.
#define MIX \
	MOVQ (AX), R9    \
	CMPQ R9, AX      \
	JLS  done        \
	CMPQ R9, R10     \
	JHI  done        \
	ROLQ $9, DX      \
	XORQ 8(R9), DX   \
	MOVQ R9, AX

// func predict(recent *recentKeys, skip int) (id ID, slot int)
TEXT ·predict(SB), NOSPLIT, $0-32
	MOVL $0, id+16(FP)
	MOVQ $-1, slot+24(FP)
	MOVQ (TLS), R8
	MOVQ const_stackHi(R8), R10
	SUBQ $16, R10 // highest address of a record

	// The slot depends on how much stack is in use, and on the calls that led to Capture's caller.
	MOVQ  R10, DX
	SUBQ  BP, DX
	MOVQ  BP, AX
	MIX
	MIX
	MIX
	MOVQ  $0x9E3779B97F4A7C15, R11
	IMULQ R11, DX
	SHRQ  $(64-9), DX
	MOVQ  DX, R13
	SHLQ  $4, DX // the size of a recentKey
	ADDQ  recent+0(FP), DX
	MOVQ  recentKey_key(DX), R12
	TESTQ R12, R12
	JEQ   unknown

	// The key's words are skip, and the return addresses in the records from Capture's on, which is at BP.
	MOVQ interned_words(R12), SI
	MOVQ skip+8(FP), AX
	CMPQ AX, (SI)
	JNE  unknown
	MOVQ interned_offsets(R12), DI
	MOVQ (interned_offsets+8)(R12), CX
	MOVL -4(DI)(CX*4), R9
	ADDQ BP, R9
	CMPQ R9, R10
	JHI  unknown // the last record would lie beyond the stack
	MOVQ BP, AX
	MOVL $1, BX
	JMP  check

next:
	MOVL (DI)(BX*4), R9
	ADDQ BP, R9
	CMPQ R9, (AX)
	JNE  unknown
	MOVQ R9, AX
	INCQ BX

check:
	MOVQ (SI)(BX*8), R9
	CMPQ R9, 8(AX)
	JNE  unknown
	CMPQ BX, CX
	JLT  next

	CMPB interned_whole(R12), $0
	JEQ  known
	CMPQ (AX), $0 // the goroutine's first frame has no caller
	JNE  unknown

known:
	MOVL interned_id(R12), AX
	MOVL AX, id+16(FP)
	RET

unknown:
	DECQ recentKey_wait(DX)
	JGE  done
	MOVQ $63, recentKey_wait(DX)
	MOVQ R13, slot+24(FP)

done:
	RET

// func bounds(loAt, hiAt uintptr) (lo, hi, sp uintptr)
TEXT ·bounds(SB), NOSPLIT, $0-40
	MOVQ (TLS), R8
	MOVQ loAt+0(FP), AX
	MOVQ (R8)(AX*1), AX
	MOVQ AX, lo+16(FP)
	MOVQ hiAt+8(FP), AX
	MOVQ (R8)(AX*1), AX
	MOVQ AX, hi+24(FP)
	MOVQ SP, sp+32(FP)
	RET

// func word(offset uintptr) uint64
TEXT ·word(SB), NOSPLIT, $0-16
	MOVQ (TLS), R8
	MOVQ offset+0(FP), AX
	MOVQ (R8)(AX*1), AX
	MOVQ AX, ret+8(FP)
	RET
