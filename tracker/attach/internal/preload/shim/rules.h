// From a return address of amd64 to its caller: see frames.h. The formats are those of the Linux
// Standard Base (Core, chapter 10.6), the instructions those of DWARF 5, section 6.4.2, and the
// numbers of registers those of the psABI.

#define ADDRESS (~(word)0) // all bits of a return address are those of an address
#include "stack.h"

enum { FP = 6, SP = 7, RA = 16 };

enum { NO_RULE = FROM_TRAMPOLINE + 1 }; // as a base: the tables say more than a rule can

typedef struct {
	const unsigned char *at, *end;
	int bad;
} table;

static word number(table *t, int size) {
	word n = 0;
	t->bad |= t->end - t->at < size;
	if (t->bad)
		return 0;
	memcpy(&n, t->at, (size_t)size);
	t->at += size;
	return n;
}

// leb reads a number of 7 bits a byte.
static word leb(table *t, int is_signed) {
	word n = 0, b;
	int shift = 0;
	do {
		b = number(t, 1);
		n |= shift < 64 ? (b & 0x7f) << shift : 0;
		shift += 7;
	} while (b & 0x80);
	return is_signed && b & 0x40 && shift < 64 ? n | ~(word)0 << shift : n;
}

static word unsigned_leb(table *t) { return leb(t, 0); }
static int64_t signed_leb(table *t) { return (int64_t)leb(t, 1); }

// part takes the next bytes.
static table part(table *t, word size) {
	table its = {t->at, t->at, t->bad |= size > (word)(t->end - t->at)};
	if (!t->bad)
		its.end = t->at += size;
	return its;
}

enum place_kind { SAME, PLUS, KEPT, AS_EXPRESSED, KEPT_AS_EXPRESSED, UNDEFINED, ELSEWHERE };

// place is where something is, or what it is.
typedef struct {
	enum place_kind how;
	uint32_t reg, size;
	int64_t offset;
	const unsigned char *expression;
} place;

// row is the places where a frame begins, and of registers.
typedef struct {
	place begin, fp, sp, ra;
} row;

typedef struct {
	word code, here, until; // a unit of code, where the instructions are, and how far they are run
	int64_t data;           // a unit of data
	row now, first, remembered[4];
	int depth;
} program;

// reg_in returns where a row has a register, NULL if it tells nothing of callers.
static place *reg_in(row *r, word reg) { return reg == FP ? &r->fp : reg == SP ? &r->sp : reg == RA ? &r->ra : NULL; }

static void set(program *p, word reg, place to) {
	if (reg_in(&p->now, reg))
		*reg_in(&p->now, reg) = to;
}

static void restore(program *p, word reg) {
	if (reg_in(&p->now, reg))
		set(p, reg, *reg_in(&p->first, reg));
}

static place expressed(table *t, word size, enum place_kind how) {
	table its = part(t, size);
	return (place){.how = how, .expression = its.at, .size = (uint32_t)(its.end - its.at)};
}

static void run_more(program *p, table *t, unsigned op) {
	word reg = op == 0x0a || op == 0x0b || op == 0 ? 0 : unsigned_leb(t); // of most
	switch (op) {
	case 0x00: // nop
	case 0x2e: // GNU_args_size
		break;
	case 0x05: set(p, reg, (place){KEPT, .offset = (int64_t)unsigned_leb(t) * p->data}); break;  // offset_extended
	case 0x11: set(p, reg, (place){KEPT, .offset = signed_leb(t) * p->data}); break;             // offset_extended_sf
	case 0x2f: set(p, reg, (place){KEPT, .offset = -(int64_t)unsigned_leb(t) * p->data}); break; // GNU_negative_offset_extended
	case 0x06: restore(p, reg); break;                                                           // restore_extended
	case 0x07: set(p, reg, (place){UNDEFINED}); break;
	case 0x08: set(p, reg, (place){SAME}); break;
	case 0x09: // register
	case 0x14: // val_offset
	case 0x15: // val_offset_sf
		leb(t, 0);
		set(p, reg, (place){ELSEWHERE});
		break;
	case 0x0a: // remember_state
		if (p->depth == sizeof p->remembered / sizeof *p->remembered)
			t->bad = 1;
		else
			p->remembered[p->depth++] = p->now;
		break;
	case 0x0b: // restore_state
		if (!p->depth)
			t->bad = 1;
		else
			p->now = p->remembered[--p->depth];
		break;
	case 0x0c: p->now.begin = (place){PLUS, (uint32_t)reg, .offset = (int64_t)unsigned_leb(t)}; break;      // def_cfa
	case 0x12: p->now.begin = (place){PLUS, (uint32_t)reg, .offset = signed_leb(t) * p->data}; break;       // def_cfa_sf
	case 0x0d: t->bad |= p->now.begin.how != PLUS; p->now.begin.reg = (uint32_t)reg; break; // def_cfa_register
	case 0x0e: p->now.begin.offset = (int64_t)reg; break;                               // def_cfa_offset
	case 0x10: set(p, reg, expressed(t, unsigned_leb(t), KEPT_AS_EXPRESSED)); break;                     // expression
	case 0x16: set(p, reg, expressed(t, unsigned_leb(t), ELSEWHERE)); break;                             // val_expression
	case 0x0f: p->now.begin = expressed(t, reg, AS_EXPRESSED); break; // def_cfa_expression
	default: t->bad = 1;
	}
}

static int run(program *p, table t) {
	while (t.at < t.end && !t.bad && p->here <= p->until) {
		unsigned op = (unsigned)number(&t, 1), low = op & 0x3f;
		switch (op & 0xc0) {
		case 0x40: p->here += low * p->code; break; // advance_loc
		case 0x80: set(p, low, (place){KEPT, .offset = (int64_t)unsigned_leb(&t) * p->data}); break;
		case 0xc0: restore(p, low); break;
		default:
			if (op >= 0x02 && op <= 0x04) // advance_loc of 1, 2 or 4 bytes
				p->here += number(&t, 1 << (op - 2)) * p->code;
			else if (op == 0x13) // def_cfa_offset_sf
				p->now.begin.offset = signed_leb(&t) * p->data;
			else
				run_more(p, &t, op);
		}
	}
	return !t.bad;
}

// encoded is how many bytes a pointer has.
static int encoded(unsigned how) {
	switch (how == 0x50 ? 1 : how & 0x0f) {
	case 0x0: case 0x4: case 0xc: return 8;
	case 0x2: case 0xa: return 2;
	case 0x3: case 0xb: return 4;
	}
	return -1;
}

// read_entry runs the instructions of the entry that tells of a function, up to an address.
static int read_entry(program *p, const unsigned char *entry, word function, word until) {
	uint32_t size, back;
	memcpy(&size, entry, sizeof size);
	memcpy(&back, entry + 4, sizeof back);
	table its = {entry + 8, entry + 4 + size}, common = {entry + 4 - back};
	memcpy(&size, common.at, sizeof size);
	common.end = common.at + 4 + size;
	common.at += 8;
	word version = number(&common, 1);
	const char *letters = (const char *)common.at;
	if (size >= 0xfffffff0 || (version != 1 && version != 3) || *letters != 'z')
		return 0;
	common.at += strlen(letters) + 1;
	p->code = unsigned_leb(&common);
	p->data = signed_leb(&common);
	if ((version == 1 ? number(&common, 1) : unsigned_leb(&common)) != RA)
		return 0;
	table more = part(&common, unsigned_leb(&common));
	int pointer = 8;
	while (*++letters)
		switch (*letters) {
		case 'R': pointer = encoded((unsigned)number(&more, 1)); break;
		case 'L': number(&more, 1); break;
		case 'P': {
			int personality = encoded((unsigned)number(&more, 1));
			if (personality < 0)
				return 0;
			number(&more, personality);
			break;
		}
		default: return 0; // a signal's frame: what it returns to was interrupted
		}
	if (more.bad || common.bad || pointer < 0)
		return 0;
	p->here = function;
	p->until = until;
	if (!run(p, common))
		return 0;
	p->here = function;
	p->first = p->now;
	number(&its, pointer);
	number(&its, pointer);
	part(&its, unsigned_leb(&its));
	return !its.bad && run(p, its);
}

// at_fp reports whether an expression is the frame pointer and an offset, and what is kept there if
// through.
static int at_fp(const place *p, int through, int32_t *offset) {
	table expression = {p->expression, p->expression + p->size};
	if (number(&expression, 1) != 0x70 + FP) // breg6
		return 0;
	int64_t n = signed_leb(&expression);
	*offset = (int32_t)n;
	return n == *offset && (!through || number(&expression, 1) == 0x06) && !expression.bad && expression.at == expression.end; // deref
}

static struct unwind_rule rule_of(const row *r) {
	struct unwind_rule s = {.return_offset = -8}, not = {NO_RULE};
	const place *b = &r->begin, *fp = &r->fp;
	if (r->sp.how != SAME)
		return not;
	if (r->ra.how == UNDEFINED)
		return fp->how == SAME ? (struct unwind_rule){NO_BASE} : not;
	if (r->ra.how != KEPT || r->ra.offset != s.return_offset)
		return not;
	s.cfa_offset = (int32_t)b->offset;
	s.fp_offset = (int32_t)fp->offset;
	if (b->how == PLUS && (b->reg == SP || b->reg == FP) && s.cfa_offset == b->offset)
		s.base = b->reg == SP ? FROM_SP : FROM_FP;
	else if (b->how == AS_EXPRESSED && at_fp(b, 1, &s.cfa_offset))
		s.base = DEREF_FP;
	else
		return not;
	if (fp->how == KEPT && s.fp_offset == fp->offset)
		s.fp_base = FROM_SP;
	else if (fp->how == KEPT_AS_EXPRESSED && at_fp(fp, 0, &s.fp_offset))
		s.fp_base = FROM_FP;
	else if (fp->how != SAME)
		return not;
	return s;
}

// read_rule reads the rule of a return address from the tables. Where there is no table, the stack
// ends: Go's code has none.
static struct unwind_rule read_rule(word pc) {
	void *bases[3] = {0};
	const unsigned char *entry = unwinder.table((void *)(pc - 1), bases); // within the call, not after it
	if (!entry)
		return (struct unwind_rule){NO_BASE};
	program p = {0};
	return read_entry(&p, entry, (word)bases[2], pc - 1) ? rule_of(&p.now) : (struct unwind_rule){NO_RULE};
}

// A cached rule may be read while another thread writes it: turn is odd then, and another
// afterwards.
typedef struct {
	word turn, pc, changes, rule[2];
} cached_rule;

static cached_rule rule_cache[4096 + 3];

#define GET_WORD(from) __atomic_load_n(&(from), __ATOMIC_RELAXED)
#define SET_WORD(to, w) __atomic_store_n(&(to), w, __ATOMIC_RELAXED)

static int get_cached(cached_rule *k, word pc, word changes, struct unwind_rule *s) {
	word turn = __atomic_load_n(&k->turn, __ATOMIC_ACQUIRE), its[] = {GET_WORD(k->rule[0]), GET_WORD(k->rule[1])};
	int found = GET_WORD(k->pc) == pc && GET_WORD(k->changes) == changes;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (!found || turn & 1 || GET_WORD(k->turn) != turn)
		return 0;
	memcpy(s, its, sizeof *s);
	return 1;
}

static void cache_rule(cached_rule *k, word pc, word changes, const struct unwind_rule *s) {
	word turn = GET_WORD(k->turn), its[2];
	_Static_assert(sizeof its == sizeof *s, "a rule is two words");
	if (turn & 1 || !__atomic_compare_exchange_n(&k->turn, &turn, turn + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	memcpy(its, s, sizeof its);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	SET_WORD(k->pc, pc);
	SET_WORD(k->changes, changes);
	SET_WORD(k->rule[0], its[0]);
	SET_WORD(k->rule[1], its[1]);
	__atomic_store_n(&k->turn, turn + 2, __ATOMIC_RELEASE);
}

// find_rule returns the rule of a return address. That of code which is not from a library, such as
// a compiler's at run time, is not kept: its tables may change unseen.
static struct unwind_rule find_rule(word pc, word changes) {
	cached_rule *first = &rule_cache[pc * 0x9e3779b97f4a7c15 >> 52], *victim = first;
	struct unwind_rule s = {NO_RULE};
	for (cached_rule *k = first; k < first + 4; k++) {
		if (get_cached(k, pc, changes, &s))
			return s;
		if (GET_WORD(victim->changes) == changes && GET_WORD(k->changes) != changes)
			victim = k; // of code that may be gone
	}
	code_is c = code_at(pc - 1);
	if (!c.is_code)
		return s;
	s = read_rule(pc);
	if (c.changes == changes)
		cache_rule(victim, pc, changes, &s);
	return s;
}

struct unwinding {
	tracing *to;
	memory *from;
	word changes;
	struct unwind_rule rule;
};

static INLINE int unwind_read(unwinding *u, word at, word *to) { return read_word(u->from, at, to); }

static INLINE int unwind_found(unwinding *u, const struct unwind_frame *f) {
	if (u->to->n > MAX_FRAMES)
		return 0;
	u->to->stack[u->to->n++] = f->pc;
	u->to->frame = f->fp;
	return 1;
}

static INLINE const struct unwind_rule *unwind_find(unwinding *u, const struct unwind_frame *f) {
	u->rule = find_rule(f->pc, u->changes);
	return u->rule.base == NO_RULE ? NULL : &u->rule;
}

static INLINE int unwind_saved(unwinding *u, struct unwind_frame *f) { // there are no trampolines
	(void)u;
	(void)f;
	return 0;
}

// by_rules takes the call stack from a function's frame outwards, and reports whether rules led to
// its end. It ends where libgcc's does.
static int by_rules(tracing *t, word frame, memory *m) {
	unwinding u = {t, m, code_at(0).changes};
	struct unwind_frame f = {.sp = frame + 2 * sizeof(word)};
	if (!unwinder.table || !u.changes || !read_word(m, frame, &f.fp) || !read_word(m, frame + sizeof(word), &f.pc))
		return 0;
	enum unwind_end end = unwind_walk(&u, &f, MAX_FRAMES + 2);
	return end == COMPLETE || end == TRUNCATED;
}
