// Unwinds a stack by rules: one step from a frame to that of its caller, and the walk along a stack. The kernel's programs and the preloaded
// library include this. Each defines before:
//
//	word       an unsigned integer of 64 bits
//	memory     what a stack is read from
//	read_word  int read_word(memory *m, word at, word *to) reads a word of the stack, and reports whether it is there
//	ADDRESS    the mask of the address bits of a return address: others may sign it
//	INLINE     the keywords of a function that is always inlined

// base is what an offset of a rule is added to.
enum base {
	NO_BASE,         // of the CFA: the frame is the outermost; of the caller's frame pointer: it is unchanged
	FROM_SP,         // the stack pointer; for the caller's frame pointer: the CFA
	FROM_FP,         // the frame pointer
	DEREF_FP,        // the CFA is the word at the frame pointer plus the offset
	FROM_TRAMPOLINE, // the return address is that of the kernel's trampoline: a probe saved the one that it replaces
};

// unwind_rule says how to get from the frame of a return address to that of its caller. The return address there is saved at the CFA plus
// return_offset.
struct unwind_rule {
	uint8_t base;    // of the CFA, the canonical frame address: the stack pointer of the caller
	uint8_t fp_base; // of the place where the caller's frame pointer is saved
	uint16_t unused;
	int32_t cfa_offset, return_offset, fp_offset;
};

// frame_pointer_rule is the rule of a function with a frame pointer: that of the caller is saved where it points to, and the return address
// behind that.
#define FRAME_POINTER_RULE ((struct unwind_rule){.base = FROM_FP, .fp_base = FROM_SP, .cfa_offset = 16, .return_offset = -8, .fp_offset = -16})

// frame is the registers of a frame that unwinding needs.
struct frame {
	word pc, sp, fp;
};

// A caller's frame that is lower by less than this is wrong: the stacks of threads and goroutines are further apart.
enum { APART = 1 << 29 };

// step replaces a frame by that of its caller, and reports whether there is one.
static INLINE int step(struct frame *f, const struct unwind_rule *r, memory *m)
{
	word cfa = (r->base == FROM_SP ? f->sp : f->fp) + (word)(int64_t)r->cfa_offset;
	if (r->base == DEREF_FP && !read_word(m, cfa, &cfa))
		return 0;
	if (f->sp - cfa < APART)
		return 0;
	if (r->fp_base != NO_BASE && !read_word(m, (r->fp_base == FROM_SP ? cfa : f->fp) + (word)(int64_t)r->fp_offset, &f->fp))
		return 0;
	if (!read_word(m, cfa + (word)(int64_t)r->return_offset, &f->pc))
		return 0;
	f->pc &= ADDRESS;
	f->sp = cfa;
	return 1;
}
