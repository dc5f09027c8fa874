//go:build gc && !nofp

#include "go_asm.h"
#include "textflag.h"

// See walk_amd64.s. Here a record lies one word below its frame: the saved frame pointer, R29, and above it the saved
// link register.

// func walk(pcs *uintptr, limit int, seed uint64) (n int, hash uint64)
TEXT ·walk(SB), NOSPLIT|NOFRAME, $0-40
	MOVD pcs+0(FP), R0
	MOVD limit+8(FP), R1
	MOVD seed+16(FP), R2
	MOVD const_stackLo(g), R8
	MOVD const_stackHi(g), R4
	SUB  $16, RSP, R3 // the record must lie above this: near the stack pointer, then the record before
	MOVD $0x9E3779B97F4A7C15, R5
	MOVD R29, R6
	MOVD ZR, R7
	CMP  R8, R3
	BLS  done
	SUB  $16, R4 // highest address of a record

next:
	CMP  R3, R6
	BLS  end
	CMP  R4, R6
	BHI  end
	MOVD R6, R3
	LDP  (R6), (R6, R8)
	MOVD.P R8, 8(R0)
	EOR  R8, R2
	MUL  R5, R2
	ADD  $1, R7
	CMP  R1, R7
	BLT  next

done:
	MOVD R7, n+24(FP)
	MOVD R2, hash+32(FP)
	RET

end:
	CBZ  R6, done // the goroutine's first frame has no caller
	MOVD ZR, R7
	B    done

// func bounds(moved uintptr) (lo, hi, sp uintptr)
TEXT ·bounds(SB), NOSPLIT|NOFRAME, $0-32
	MOVD moved+0(FP), R0
	ADD  g, R0
	MOVD const_stackLo(R0), R1
	MOVD const_stackHi(R0), R2
	MOVD RSP, R3
	MOVD R1, lo+8(FP)
	MOVD R2, hi+16(FP)
	MOVD R3, sp+24(FP)
	RET

// func word(offset uintptr) uint64
TEXT ·word(SB), NOSPLIT|NOFRAME, $0-16
	MOVD offset+0(FP), R0
	MOVD (g)(R0), R1
	MOVD R1, ret+8(FP)
	RET
