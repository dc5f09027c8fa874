// Unwinds a stack by rules: the walk along its frames, and the step from each to that of its caller. The kernel's programs and the preloaded
// library include this. It has no loop without a bound, and calls nothing but what each of them defines. Before:
//
//	word    an unsigned integer of 64 bits
//	INLINE  the keywords of a function that is always inlined
//	ADDRESS the mask of the address bits of a return address: others may sign it
//
// And before or after: struct unwinding, unwind_read, unwind_found, unwind_find and unwind_saved.
#include "event.h"

// unwind_base is what an offset of a rule is added to.
enum unwind_base {
	NO_BASE,         // of the CFA: the frame is the outermost; of the caller's frame pointer: it is unchanged
	FROM_SP,         // the stack pointer; for the caller's frame pointer: the CFA
	FROM_FP,         // the frame pointer
	DEREF_FP,        // the CFA is the word at the frame pointer plus the offset
	FROM_TRAMPOLINE, // the return address is that of the kernel's trampoline: a probe saved the one that it replaces
};

// unwind_rule says how to get from the frame of a return address to that of its caller. The return
// address there is saved at the CFA plus return_offset.
struct unwind_rule {
	uint8_t base;    // of the CFA, the canonical frame address: the stack pointer of the caller
	uint8_t fp_base; // of the place where the caller's frame pointer is saved
	uint16_t unused;
	int32_t cfa_offset, return_offset, fp_offset;
};

// FRAME_POINTER_RULE is the rule of a function with a frame pointer: that of the caller is saved
// where it points to, and the return address behind that.
#define FRAME_POINTER_RULE ((struct unwind_rule){.base = FROM_FP, .fp_base = FROM_SP, .cfa_offset = 16, .return_offset = -8, .fp_offset = -16})

// unwind_frame is the registers of a frame that unwinding needs.
struct unwind_frame {
	word pc, sp, fp;
};

// unwinding is what a walk reads by, and where it leaves what it finds.
typedef struct unwinding unwinding;

// unwind_read reads a word of the stack, and reports whether it is there.
static INLINE int unwind_read(unwinding *u, word at, word *to);

// unwind_found takes the next frame, and reports whether there was room.
static INLINE int unwind_found(unwinding *u, const struct unwind_frame *f);

// unwind_find returns the rule of a frame; NULL if there is none.
static INLINE const struct unwind_rule *unwind_find(unwinding *u, const struct unwind_frame *f);

// unwind_saved replaces the address of a trampoline by the return address that a probe saved, and
// reports whether that is known.
static INLINE int unwind_saved(unwinding *u, struct unwind_frame *f);

// A caller's frame that is lower by less than this is wrong: the stacks of threads and goroutines
// are further apart.
enum { UNWIND_APART = 1 << 29 };

// unwind_step replaces a frame by that of its caller, and reports whether there is one.
static INLINE int unwind_step(unwinding *u, const struct unwind_rule *r, struct unwind_frame *f)
{
	word cfa = (r->base == FROM_SP ? f->sp : f->fp) + (word)(int64_t)r->cfa_offset;
	if (r->base == DEREF_FP && !unwind_read(u, cfa, &cfa))
		return 0;
	if (f->sp - cfa < UNWIND_APART)
		return 0;
	if (r->fp_base != NO_BASE && !unwind_read(u, (r->fp_base == FROM_SP ? cfa : f->fp) + (word)(int64_t)r->fp_offset, &f->fp))
		return 0;
	if (!unwind_read(u, cfa + (word)(int64_t)r->return_offset, &f->pc))
		return 0;
	f->pc &= ADDRESS;
	f->sp = cfa;
	return 1;
}

// unwind_walk takes the frames of a stack from one outwards, in a number of turns at most, and
// returns why there are no more; CONTINUED if there may be.
static INLINE enum unwind_end unwind_walk(unwinding *u, struct unwind_frame *f, unsigned turns)
{
	for (unsigned turn = 0; turn < turns; turn++) {
		if (!unwind_found(u, f))
			return TRUNCATED;
		const struct unwind_rule *r = unwind_find(u, f);
		if (!r)
			return UNKNOWN_FUNCTION;
		if (r->base == NO_BASE)
			return COMPLETE;
		if (!(r->base == FROM_TRAMPOLINE ? unwind_saved(u, f) : unwind_step(u, r, f)))
			return NO_CALLER;
		if (!f->pc)
			return COMPLETE;
	}
	return CONTINUED;
}
