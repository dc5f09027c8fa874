//go:build gc && !nofp

#include "go_asm.h"
#include "textflag.h"

// See walk_amd64.s. Here a record lies one word below its frame: the saved frame pointer, R29, and above it the saved
// link register.

// func walk(pcs, records *uintptr, limit int, seed uint64) (n int, hash uint64)
TEXT ·walk(SB), NOSPLIT|NOFRAME, $0-48
	MOVD pcs+0(FP), R0
	MOVD records+8(FP), R9
	MOVD limit+16(FP), R1
	MOVD seed+24(FP), R2
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
	CBZ  R9, follow
	MOVD.P R6, 8(R9)

follow:
	LDP  (R6), (R6, R8)
	MOVD.P R8, 8(R0)
	EOR  R8, R2
	MUL  R5, R2
	ADD  $1, R7
	CMP  R1, R7
	BLT  next

done:
	MOVD R7, n+32(FP)
	MOVD R2, hash+40(FP)
	RET

end:
	CBZ  R6, done // the goroutine's first frame has no caller
	MOVD ZR, R7
	B    done

// MIX goes from the record at R6 to the next, if that lies within the stack, and mixes its return address into R2.
#define MIX \
	LDP (R6), (R8, R7) \
	CMP R6, R8         \
	BLS done           \
	CMP R4, R8         \
	BHI done           \
	MOVD R8, R6        \
	MOVD 8(R6), R7     \
	ROR  $55, R2       \
	EOR  R7, R2

// func predict(recent *recentKeys, skip int) (id ID, slot int)
TEXT ·predict(SB), NOSPLIT|NOFRAME, $0-32
	MOVW ZR, id+16(FP)
	MOVD $-1, R8
	MOVD R8, slot+24(FP)
	MOVD const_stackHi(g), R4
	SUB  $16, R4 // highest address of a record

	// The slot depends on how much stack is in use, and on the calls that led to Capture's caller.
	SUB  R29, R4, R2
	MOVD R29, R6
	MIX
	MIX
	MIX
	MOVD $0x9E3779B97F4A7C15, R5
	MUL  R5, R2
	LSR  $(64-9), R2
	MOVD recent+0(FP), R10
	ADD  R2<<4, R10 // the size of a recentKey
	MOVD recentKey_key(R10), R9
	CBZ  R9, unknown

	// The key's words are skip, and the return addresses in the records from Capture's on, which is at R29.
	MOVD  interned_words(R9), R0
	MOVD  skip+8(FP), R1
	MOVD.P 8(R0), R8
	CMP   R1, R8
	BNE   unknown
	MOVD  interned_offsets(R9), R1
	MOVD  (interned_offsets+8)(R9), R3
	ADD   R3<<2, R1, R3 // the end of the offsets
	MOVWU -4(R3), R8
	ADD   R29, R8
	CMP   R4, R8
	BHI   unknown // the last record would lie beyond the stack
	MOVD  R29, R8
	ADD   $4, R1
	B     check

next:
	MOVWU.P 4(R1), R8
	ADD   R29, R8
	CMP   R6, R8
	BNE   unknown

check:
	LDP  (R8), (R6, R7)
	MOVD.P 8(R0), R8
	CMP  R7, R8
	BNE  unknown
	CMP  R3, R1
	BLO  next

	MOVBU interned_whole(R9), R8
	CBZ   R8, known
	CBNZ  R6, unknown // the goroutine's first frame has no caller

known:
	MOVW interned_id(R9), R8
	MOVW R8, id+16(FP)
	RET

unknown:
	MOVD recentKey_wait(R10), R8
	SUB  $1, R8
	TBZ  $63, R8, wait
	MOVD R2, slot+24(FP)
	MOVD $63, R8

wait:
	MOVD R8, recentKey_wait(R10)

done:
	RET

// func bounds(loAt, hiAt uintptr) (lo, hi, sp uintptr)
TEXT ·bounds(SB), NOSPLIT|NOFRAME, $0-40
	MOVD loAt+0(FP), R0
	MOVD (g)(R0), R0
	MOVD R0, lo+16(FP)
	MOVD hiAt+8(FP), R0
	MOVD (g)(R0), R0
	MOVD R0, hi+24(FP)
	MOVD RSP, R0
	MOVD R0, sp+32(FP)
	RET

// func word(offset uintptr) uint64
TEXT ·word(SB), NOSPLIT|NOFRAME, $0-16
	MOVD offset+0(FP), R0
	MOVD (g)(R0), R1
	MOVD R1, ret+8(FP)
	RET
