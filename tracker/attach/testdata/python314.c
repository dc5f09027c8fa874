// Stands for an interpreter of Python 3.14: it tells its offsets in the order of that version's struct _Py_DebugOffsets, and has strings,
// code objects and frames of its shapes. Two functions of Python call C, which calls a third one, which allocates:
//
//	layer (model.py:12) <- qsort_r <- forward (model.py:7) <- <module> (Größe.py:3)
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, size_t);

typedef struct { int64_t refs; void *type; } object;
typedef struct { object base; int64_t length, hash; struct { uint16_t interned, kind : 3, compact : 1, ascii : 1, fixed : 1; } state; char text[64] __attribute__((aligned(8))); } string;
typedef struct { object base; int64_t size, hash; unsigned char text[16]; } bytes;
typedef struct { object base; char room[44]; int first; char more[16]; string *file, *name, *qualified; bytes *lines; char code[64]; } code;
typedef struct frame { uintptr_t executable; struct frame *previous; char room[40]; void *instruction; void *sp; char more[3], owner, locals[32]; } frame;
typedef struct thread { struct thread *prev, *next; struct interpreter *of; char room[40]; frame *current; uint64_t id, kernel; } thread;
typedef struct interpreter { char room[100]; struct interpreter *next; char more[24]; thread *threads, *main; } interpreter;

enum { WORDS = 81 };
struct { uint64_t told[WORDS]; char room[400]; interpreter *first, *main; } _PyRuntime;
const unsigned long Py_Version = 0x030e02f0;
static thread threads[3];

const char *Py_GetVersion(void) { return "3.14.2 (main)"; }
thread *PyGILState_GetThisThreadState(void) { return pthread_equal(pthread_self(), threads[1].id) ? &threads[1] : NULL; }

static void tell(void) {
	uint64_t *t = _PyRuntime.told;
	memcpy(t, "xdebugpy", 8);
	for (int i = 1; i < WORDS; i++)
		t[i] = 7777; // nothing that is needed
	t[1] = Py_Version, t[2] = 0;
	t[5] = offsetof(__typeof__(_PyRuntime), first);
	t[8] = offsetof(interpreter, next), t[9] = offsetof(interpreter, threads), t[10] = offsetof(interpreter, main);
	t[23] = offsetof(thread, prev), t[24] = offsetof(thread, next), t[25] = offsetof(thread, of), t[26] = offsetof(thread, current);
	t[27] = offsetof(thread, id), t[28] = offsetof(thread, kernel);
	t[32] = offsetof(frame, previous), t[33] = offsetof(frame, executable), t[34] = offsetof(frame, instruction), t[35] = offsetof(frame, locals);
	t[36] = offsetof(frame, owner), t[37] = offsetof(frame, sp), t[38] = 0;
	t[40] = offsetof(code, file), t[41] = offsetof(code, name), t[42] = offsetof(code, qualified), t[43] = offsetof(code, lines);
	t[44] = offsetof(code, first), t[48] = offsetof(code, code), t[49] = 0;
	t[74] = offsetof(bytes, text) + 8, t[75] = offsetof(bytes, size), t[76] = offsetof(bytes, text);
	t[77] = 64, t[78] = offsetof(string, state), t[79] = offsetof(string, length), t[80] = offsetof(string, text);
}

static string *text(const char *s) {
	string *t = calloc(1, sizeof *t);
	t->length = (int64_t)strlen(s), t->state.interned = 2, t->state.kind = t->state.compact = 1;
	t->state.ascii = !strchr(s, '\xf6'); // else it is Latin-1, and its length in UTF-8 and its text in UTF-8 come before
	strcpy(t->text + (t->state.ascii ? 0 : 16), s);
	return t;
}

// function makes a code object whose third instruction is on the line after its first one.
static code *function(const char *file, const char *name, int first) {
	code *c = aligned_alloc(16, (sizeof *c + 15) / 16 * 16);
	memset(c, 0, sizeof *c);
	c->first = first, c->file = text(file), c->name = text("?"), c->qualified = text(name), c->lines = calloc(1, sizeof *c->lines);
	static const unsigned char lines[] = {0x80 | 10 << 3 | 1, 0, 0, 0x80 | 11 << 3, 0, 0}; // two instructions, and one
	memcpy(c->lines->text, lines, c->lines->size = sizeof lines);
	return c;
}

// run puts a frame upon those of the thread, and an owner's frame below it, as the loop does when C calls it.
static void run(code *of, int owner) {
	frame *entry = calloc(1, sizeof *entry), *f = calloc(1, sizeof *f);
	entry->executable = 1, entry->owner = (char)owner, entry->previous = threads[1].current;
	f->executable = (uintptr_t)of | 1, f->instruction = of->code + 4, f->previous = owner ? entry : entry->previous;
	threads[1].current = f;
}

__attribute__((noinline)) int _PyEval_EvalFrameDefault(int depth);

static int compare(const void *a, const void *b, void *depth) { return (a == b) + _PyEval_EvalFrameDefault(*(int *)depth - 1); }

__attribute__((noinline)) static int builtin_call(int depth) {
	unsigned long long p;
	int numbers[] = {1, 2};
	if (depth == 0)
		return cuMemAlloc_v2(&p, 4096);
	qsort_r(numbers, 2, sizeof *numbers, compare, &depth);
	return numbers[0];
}

int _PyEval_EvalFrameDefault(int depth) {
	if (depth)
		run(function("Gr\xf6\xdf" "e.py", "<module>", 2), 3), run(function("/src/model.py", "Net.forward", 6), 0);
	else
		run(function("/src/model.py", "layer", 11), 4);
	return builtin_call(depth) + 1;
}

int main(void) {
	static interpreter main;
	void *context;
	_PyRuntime.first = _PyRuntime.main = &main;
	main.threads = &threads[0], threads[0].next = &threads[1], threads[1].next = &threads[2];
	threads[1].id = pthread_self(), threads[1].kernel = (uint64_t)getpid();
	tell();
	if (getchar() == EOF || cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || _PyEval_EvalFrameDefault(1) == 0)
		return 1;
	puts("done");
	fflush(stdout);
	while (getchar() != EOF) {
	}
}
