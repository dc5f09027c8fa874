// What the programs share: types, maps, and the records that each writes.

typedef unsigned char uint8_t, __u8;
typedef signed char __s8;
typedef unsigned short uint16_t, __u16, __be16;
typedef short __s16;
typedef unsigned int uint32_t, __u32, __be32, __wsum;
typedef int int32_t, __s32;
typedef unsigned long long uint64_t, __u64;
typedef long long int64_t, __s64;
typedef uint64_t word;
typedef _Bool bool;

#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_ANY, BPF_NOEXIST };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_RB_AVAIL_DATA, BPF_RB_RING_SIZE, BPF_RB_CONS_POS, BPF_RB_PROD_POS };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "arch.h"
#include "event.h"

#define INLINE __always_inline
#define ADDRESS address_bits

// Set before the programs are loaded.
const volatile word address_bits = ~(word)0; // of a return address: the others may sign it
const volatile uint32_t ring_bytes = 1 << 24;
const volatile bool has_cookie;         // a probe has a cookie, which says what it is attached to
const volatile uint32_t attached_to;    // else this program has copies, one for each function or static probe

#include "stack.h"

struct unwinding {
	struct scratch *s;
	word id; // of the thread
};

#include "python.h"

struct py_reader {
	struct scratch *s;
	const struct interpreter *p; // the interpreter of the process
};

// A function that is watched.
struct function {
	uint32_t flags;
	uint32_t address; // index of the argument that points to where a call writes its result
};

enum {
	OF_LIBRARY = 1 << 0,       // not of the driver
	APPLIES_AT_ENTRY = 1 << 1, // of its return, only a failure is reported
	ENTRY_ONLY = 1 << 2,
	RECORDS_STACK = 1 << 3,
	WRITES_RESULT = 1 << 4,
	WRITES_PITCH = 1 << 5,
	HAS_DESCRIPTOR = 1 << 6,
	WAKES = 1 << 7,  // the reader must know it soon
	NESTED = 1 << 8, // a call inside another is reported, too
};

// An argument of a static probe: the value at, in a register, or in memory at a register plus an
// offset.
struct argument {
	uint16_t in; // the register's offset in the registers
	uint8_t kind, unused;
	uint8_t bits, is_signed; // of the value
	uint16_t size;           // in bytes
	int32_t offset;          // or the constant
};

enum { CONSTANT, IN_REGISTER, IN_MEMORY };

struct static_probe {
	uint32_t function;
	struct argument arguments[ARGUMENT_COUNT];
};

// generation is when the code of a process may have changed: by the lowest 32 bits of the clock.
struct generation {
	uint32_t code;  // more was mapped
	uint32_t since; // some was unmapped
};

// call is the current call of a thread, of the driver or of another library. A call that never
// returned (by longjmp) is recognized by its stack pointer.
struct call {
	uint32_t is_current, function;
	word at_instructions; // its returns are probed at the instructions
	word stack;           // the stack pointer
	word args[ARGUMENT_COUNT];
	word saved_return; // of a library's function: the return address, which the kernel's return probe replaces
};

// In the cookie of a probe: the returns of the function are probed at the instructions that return. An
// exception may pass through it, which the kernel's return probe does not survive.
#define AT_INSTRUCTIONS (1u << 31)

struct thread {
	struct call calls[2];  // of the driver, and of another library, which may call the driver
	word last_pc, last_sp; // where a probe was hit last, and that of which file it was
	word last_file;
};

struct rule_key {
	uint32_t pid, generation;
	word pc;
};

// scratch is where a thread's stack and event are worked out. Its first part stays from one call to
// the next.
enum { WINDOW = 1 << 10, KEPT_RULES = 32, KEPT_CODES = 64, MAX_NEW = 24, MAX_FILE = 192, MAX_NAME = 96 };

struct scratch {
	// The rules of the innermost frames at the latest call, from which the next seldom differs.
	// They hold for a generation, as long as none was removed.
	word kept_removals;
	uint32_t kept_generation, kept_rules;
	struct {
		word pc;
		struct unwind_rule rule;
	} rules[KEPT_RULES];
	// Code objects of Python, which are known to the program as long as none was copied.
	word kept_copies, kept_program;
	uint32_t walks, unused;
	struct {
		word code, digest;
		uint32_t walk, first_line;
	} codes[KEPT_CODES];

	word window_at;               // address of the window; 0 if it holds nothing
	uint8_t window[WINDOW + PY_MAX_PART]; // a part of the stack: to read each word by itself would double the cost
	struct unwind_frame at;       // the frame that unwinding is at
	struct unwind_rule rule;      // its rule
	uint32_t past_unknown;        // behind an address without a rule
	struct stack_start unknown;   // the frame of that
	word pointer;                 // of Python's structures
	word interpreter, found;      // of Python, whose threads are searched, and the thread that was found
	word python_at;               // the thread of Python, or the frame
	word python_is_kept;          // what is in codes is known
	uint32_t chain;               // number of programs that ran one after the other
	uint32_t tries, threads;      // to find the thread of Python, and number of those that were searched
	uint32_t new_codes;           // number of unknown code objects
	word new_code[MAX_NEW];
	word head[PY_PART_WORDS];     // of a code object: PY_HEAD_WORDS
	uint8_t texts[MAX_FILE + MAX_NAME];
	struct event event;
};

#define MAP(name, kind, entries, key_type, value_type) \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_##kind);     \
		__uint(max_entries, entries);          \
		__type(key, key_type);                 \
		__type(value, value_type);             \
	} name SEC(".maps")

#define MAX_PROCESSES (1 << 14)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} ring SEC(".maps"); // its size is ring_bytes

MAP(functions, ARRAY, 1, uint32_t, struct function);              // as many as are watched
MAP(static_probes, ARRAY, 1 << 10, uint32_t, struct static_probe);
MAP(watched, HASH, MAX_PROCESSES, uint32_t, struct generation);   // by process
MAP(threads, LRU_HASH, 1 << 16, word, struct thread);             // by thread: see bpf_get_current_pid_tgid
MAP(scratches, LRU_HASH, 1 << 12, word, struct scratch);
MAP(empty_scratch, ARRAY, 1, uint32_t, struct scratch);
MAP(rules, LRU_HASH, 1 << 16, struct rule_key, struct unwind_rule);

enum { RULES_REMOVED, CODES_COPIED, CHANGES };
MAP(changes, ARRAY, CHANGES, uint32_t, word); // how often rules were removed, and code objects of Python were copied

enum { LOST_COUNT, LOST_SINCE, LOST_SLOTS }; // how many events the ring buffer had no room for, and when the first was
MAP(loss, ARRAY, LOST_SLOTS, uint32_t, word);

// Programs that others go on with. The verifier takes long for a loop of many turns: each makes a
// few, and then goes on with itself.
enum { FIND_PYTHON, WALK_PYTHON, COPY_CODE, UNWIND, COPY_STACK, TAIL_CALLS };

enum {
	THREADS_AT_ONCE = 64,
	FRAMES_AT_ONCE = 24,
	PYTHON_AT_ONCE = 16,
	CHAIN = 33, // programs after the first that the kernel allows
	CHAIN_OF_FRAMES = MAX_FRAMES / FRAMES_AT_ONCE + 1,
	CHAIN_OF_PYTHON = MAX_PYTHON / PYTHON_AT_ONCE + 1,
};

int find_python(registers *r), walk_python(registers *r), copy_code(registers *r), unwind(registers *r), copy_stack(registers *r);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAIL_CALLS);
	__uint(key_size, sizeof(uint32_t));
	__array(values, int(registers *));
} tail_calls SEC(".maps") = {
	.values = {
		[FIND_PYTHON] = &find_python,
		[WALK_PYTHON] = &walk_python,
		[COPY_CODE] = &copy_code,
		[UNWIND] = &unwind,
		[COPY_STACK] = &copy_stack,
	},
};

// watching returns the code generation of the current process; NULL if it is not watched.
static INLINE struct generation *watching(word id)
{
	uint32_t pid = id >> 32;
	return bpf_map_lookup_elem(&watched, &pid);
}

#include "all.h"

// lose_for_all counts dropped events that are of no known process: all ledgers may be inaccurate.
static INLINE void lose_for_all(word events)
{
	uint32_t count = LOST_COUNT, since = LOST_SINCE;
	word *n = bpf_map_lookup_elem(&loss, &count), *first = bpf_map_lookup_elem(&loss, &since);
	if (n)
		__sync_fetch_and_add(n, events);
	if (first && !*first)
		*first = bpf_ktime_get_ns();
}

// lose counts an event that was dropped: where every process is watched, as one of the current
// process.
static INLINE void lose(void)
{
	if (!lose_of(bpf_get_current_pid_tgid()))
		lose_for_all(1);
}

// scratch_in_use returns the scratch buffer that an earlier program of the chain filled. NULL if
// the map has dropped it since, for a thread that called first: the event is lost then.
static INLINE struct scratch *scratch_in_use(word id)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &id);
	if (!s)
		lose();
	return s;
}

// go_on continues with another program. It returns only if that is not possible.
static INLINE int go_on(void *ctx, struct scratch *s, uint32_t program)
{
	s->chain++;
	bpf_tail_call(ctx, &tail_calls, program);
	lose();
	return 0;
}

static INLINE struct record record_of(word id, uint32_t function, uint32_t phase)
{
	return (struct record){.time = bpf_ktime_get_ns(), .tid = (uint32_t)id, .pid = id >> 32, .function = function, .phase = phase};
}

// reserve reserves an event without a stack.
static INLINE struct event *reserve(word id, uint32_t function, uint32_t phase, word size)
{
	struct event *e = bpf_ringbuf_reserve(&ring, size, 0);
	if (!e) {
		lose();
		return e;
	}
	e->head = record_of(id, function, phase);
	e->result = e->out = e->pitch = 0;
	return e;
}

// reserve_call reserves an event of a call without a stack.
static INLINE struct event *reserve_call(word id, uint32_t function, uint32_t phase)
{
	if (has_room(id, SHORT_SIZE))
		return reserve(id, function, phase, SHORT_SIZE);
	lose();
	return NULL;
}
