// Finds the callers of a function by the tables that compilers write for exceptions (.eh_frame), as
// libgcc's unwinder does, which finds the tables. What they say of a return address is kept: it
// depends on the address alone, as long as no code is loaded or unloaded. Nothing of a stack is
// kept, so that no caller is one of before. What a rule cannot express is left to libgcc.

// memory reads what call stacks lie in, which may not be there.
typedef struct {
	word begin, end; // of the thread's own stack, from a frame on: this is there
	word from, to;   // addresses of what the kernel has read into part
	word part[256];
} memory;

// own is the stack of this thread. It never shrinks while the thread runs.
static __thread struct {
	word lowest, end;
	word begin; // from here on it is there for sure
} own;

enum { FREE_BELOW = 512 << 10 }; // the kernel leaves 1 MiB free below a stack that grows

// find_own looks for the thread's stack, and keeps that frame is in it, if it is: a signal handler
// may have another stack.
static void find_own(word frame) {
	pthread_attr_t its;
	void *lowest = NULL;
	size_t size = 0;
	if (!pthread_getattr_np(pthread_self(), &its)) {
		pthread_attr_getstack(&its, &lowest, &size);
		pthread_attr_destroy(&its);
	}
	word begin = (word)lowest, end = size ? begin + size : 1;
	own.begin = end;
	own.lowest = begin;
	own.end = end;
	if (frame >= begin && frame < end)
		own.begin = frame - begin > FREE_BELOW ? frame - FREE_BELOW : begin;
}

static void read_from(memory *m, word frame) {
	if (!own.end || (own.lowest && frame >= own.lowest && frame < own.begin))
		find_own(frame);
	m->begin = m->end = m->from = m->to = 0;
	if (frame >= own.begin && frame < own.end) {
		m->begin = frame;
		m->end = own.end;
	}
}

static int read_word(memory *m, word at, word *w) {
	if (at % sizeof(word))
		return 0;
	if (at >= m->begin && at < m->end) {
		*w = *(const word *)at;
		return 1;
	}
	if (at < m->from || at >= m->to) {
		struct iovec here = {m->part, sizeof m->part}, there = {(void *)at, sizeof m->part};
		ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
		if (got < (ssize_t)sizeof(word)) { // the stack may end within that
			here.iov_len = there.iov_len = sizeof(word);
			got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
		}
		if (got < (ssize_t)sizeof(word))
			return 0;
		m->from = at;
		m->to = at + (word)got / sizeof(word) * sizeof(word);
	}
	*w = m->part[(at - m->from) / sizeof(word)];
	return 1;
}

// walk takes the call stack by frame pointers, which may point anywhere.
static int walk(word *stack, int n, word frame, memory *m) {
	for (word next, pc; n <= MAX_FRAMES && frame && read_word(m, frame, &next) && read_word(m, frame + sizeof(word), &pc) && pc; frame = next)
		stack[n++] = pc;
	return n;
}

// unwinder is libgcc's.
static struct {
	_Unwind_Reason_Code (*backtrace)(_Unwind_Trace_Fn, void *);
	_Unwind_Ptr (*ip)(struct _Unwind_Context *);
	_Unwind_Word (*cfa)(struct _Unwind_Context *), (*reg)(struct _Unwind_Context *, int);
	const unsigned char *(*table)(void *pc, void *bases[3]); // the entry for an address; bases[2] is where its function begins
} unwinder;

static void find_unwinder(void) {
	void *lib = dlopen("libgcc_s.so.1", RTLD_LAZY);
	if (!lib)
		return;
	*(void **)&unwinder.ip = dlsym(lib, "_Unwind_GetIP");
	*(void **)&unwinder.cfa = dlsym(lib, "_Unwind_GetCFA");
	*(void **)&unwinder.reg = dlsym(lib, "_Unwind_GetGR");
	*(void **)&unwinder.table = dlsym(lib, "_Unwind_Find_FDE");
	if (unwinder.ip && unwinder.cfa && unwinder.reg)
		*(void **)&unwinder.backtrace = dlsym(lib, "_Unwind_Backtrace");
}

#ifdef __aarch64__
enum { FRAME_POINTER = 29 };
#else
enum { FRAME_POINTER = 6 };
#endif

typedef struct {
	word *stack, above, frame;
	int n;
} tracing;

static _Unwind_Reason_Code trace(struct _Unwind_Context *c, void *to) {
	tracing *t = to;
	if (unwinder.cfa(c) <= t->above) // the shim's own frames
		return _URC_NO_REASON;
	if (t->n > MAX_FRAMES)
		return _URC_END_OF_STACK;
	t->stack[t->n++] = unwinder.ip(c);
	t->frame = unwinder.reg(c, FRAME_POINTER);
	return _URC_NO_REASON;
}

// code_is asks for what changes whenever code is loaded or unloaded, and for whether an address is
// in what is loaded.
typedef struct {
	word address, loads, changes;
	int is_code;
} code_is;

// Do not hold the lock here: a thread may wait for it while it loads code.
static int look_at_code(struct dl_phdr_info *info, size_t size, void *of) {
	code_is *c = of;
	if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) {
		c->loads = info->dlpi_adds;
		c->changes = info->dlpi_adds + info->dlpi_subs;
	}
	for (int i = 0; c->address && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &info->dlpi_phdr[i];
		c->is_code |= h->p_type == PT_LOAD && c->address - info->dlpi_addr - h->p_vaddr < h->p_memsz;
	}
	return c->is_code || !c->address;
}

static code_is code_at(word address) {
	code_is c = {.address = address};
	dl_iterate_phdr(look_at_code, &c);
	return c;
}

#ifdef __x86_64__
#include "rules.h"
#else
static int by_rules(tracing *t, word frame, memory *m) { return (void)t, (void)frame, (void)m, 0; }
#endif

// callers takes the call stack from a function's frame outwards: by tables, and from the first code
// without any, such as Go's, by frame pointers. There is room for one more than MAX_FRAMES.
static uint32_t callers(word *stack, word *frame) {
	memory m;
	read_from(&m, (word)frame);
	tracing t = {.stack = stack, .above = (word)frame};
	if (unwinder.backtrace && !by_rules(&t, (word)frame, &m)) {
		t.n = 0;
		unwinder.backtrace(trace, &t);
	}
	t.n = walk(stack, t.n, t.n ? t.frame : (word)frame, &m);
	while (t.n && !stack[t.n - 1])
		t.n--;
	return (uint32_t)t.n;
}
