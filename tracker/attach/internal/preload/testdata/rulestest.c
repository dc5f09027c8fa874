// Compares the callers that the shim finds by its cached unwind rules with those of libgcc's
// unwinder, at the same call: one that differs ends the program with a message. With -DLIBRARY, a
// library with a function whose frame has that size.
#ifdef LIBRARY
static volatile int sink;

void run(void (*check)(void)) {
	volatile char room[LIBRARY];
	room[sink] = 1;
	check();
	sink += room[sink] - 1;
}
#else
#include "shim.c"

#include <alloca.h>
#include <setjmp.h>
#include <ucontext.h>

#define CHECK(ok)                                                                \
	if (!(ok)) {                                                             \
		fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #ok); \
		exit(1);                                                         \
	}

static volatile int sink;
static int checks, by_rules_only; // calls, and those whose stack was found by rules alone
static const char *scene;

// check stands for a function of the driver.
__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void check(void) {
	word got[MAX_FRAMES + 1], want[MAX_FRAMES + 1], *frame = __builtin_frame_address(0);
	memory m;
	read_from(&m, (word)frame);
	tracing by = {.stack = got, .above = (word)frame}, of = {.stack = want, .above = (word)frame};
	__atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED);
	if (by_rules(&by, (word)frame, &m))
		__atomic_add_fetch(&by_rules_only, 1, __ATOMIC_RELAXED);
	unwinder.backtrace(trace, &of);
	of.n = walk(want, of.n, of.frame, &m);
	while (of.n && !want[of.n - 1])
		of.n--;
	uint32_t n = callers(got, frame);
	if (n == (uint32_t)of.n && n > 1 && !memcmp(got, want, n * sizeof *got))
		return;
	fprintf(stderr, "%s: a stack is not libgcc's:\n", scene);
	for (int i = 0; i < of.n || i < (int)n; i++)
		fprintf(stderr, "%16lx %16lx\n", i < (int)n ? (long)got[i] : 0, i < of.n ? (long)want[i] : 0);
	exit(1);
}

#define ALONE __attribute__((noinline, noclone))

// Depths of one function: the same return addresses, at other places.
ALONE static void recurse(int depth) {
	if (depth)
		recurse(depth - 1);
	else
		check();
	sink++;
}

static void depths(void) {
	for (int i = 0; i < 600; i++)
		recurse(i * 7 % 150);
}

// Callers whose frames have the same size leave return addresses at the same places.
#define SAME_SIZE(name)                    \
	ALONE static void name(int depth); \
	ALONE static void name(int depth) { \
		volatile char room[72];    \
		room[depth] = 1;           \
		next_of(depth);            \
		sink += room[depth];       \
	}

static unsigned choices;
static void next_of(int depth);
SAME_SIZE(first)
SAME_SIZE(second)

ALONE static void next_of(int depth) {
	if (!depth)
		check();
	else if (choices >> depth & 1)
		first(depth - 1);
	else
		second(depth - 1);
	sink++;
}

static void alternating(void) {
	for (int i = 0; i < 2000; i++) {
		choices = (unsigned)i * 2654435761u;
		next_of(20);
	}
}

// Frames whose size is known only when they run, aligned ones, and ones with a frame pointer.
ALONE static void sized(int n, int depth);

ALONE static void aligned(int n, int depth) {
	_Alignas(64) volatile char room[192];
	room[n & 63] = 1;
	if (depth)
		sized(n + 1, depth - 1);
	else
		check();
	sink += room[n & 63];
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void framed(int n, int depth) {
	if (depth)
		aligned(n * 3, depth - 1);
	else
		check();
	sink++;
}

ALONE static void sized(int n, int depth) {
	volatile char *room = alloca((size_t)(n * 37 % 4000 + 1));
	room[0] = 1;
	if (depth)
		framed(n, depth - 1);
	else
		check();
	sink += room[0];
}

static void sizes(void) {
	for (int i = 0; i < 1000; i++)
		sized(i, i % 12);
}

// A jump leaves frames behind, in which others begin.
static jmp_buf back;

ALONE static void leave(int depth) {
	volatile char room[40];
	room[depth] = 1;
	if (depth)
		leave(depth - 1);
	check();
	if (room[depth])
		longjmp(back, 1);
}

static void jumps(void) {
	for (volatile int i = 0; i < 300; i++)
		if (!setjmp(back))
			leave(i % 30);
		else
			recurse(i % 31);
}

// Signal handlers, on the thread's stack and on another.
static void on_signal(int unused) {
	(void)unused;
	recurse(3);
}

static void signals(void) {
	static char other[64 << 10];
	stack_t s = {.ss_sp = other, .ss_size = sizeof other};
	CHECK(!sigaltstack(&s, NULL));
	for (int i = 0; i < 100; i++) {
		struct sigaction a = {.sa_handler = on_signal, .sa_flags = i % 2 ? SA_ONSTACK : 0};
		CHECK(!sigaction(SIGUSR1, &a, NULL));
		raise(SIGUSR1);
		recurse(i % 9);
	}
}

// Threads one after another, which get the same stack, and at the same time, which read and write
// the same rules.
static void *in_thread(void *n) {
	for (int i = 0; i < 50; i++) {
		recurse((int)(size_t)n + i % 7);
		sized((int)(size_t)n, i % 12);
	}
	return n;
}

static void threads(void) {
	for (size_t i = 0; i < 40; i++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, in_thread, (void *)i) && !pthread_join(t, NULL));
	}
	pthread_t some[16];
	memset(rule_cache, 0, sizeof rule_cache);
	for (size_t i = 0; i < 16; i++)
		CHECK(!pthread_create(&some[i], NULL, in_thread, (void *)i));
	for (size_t i = 0; i < 16; i++)
		CHECK(!pthread_join(some[i], NULL));
}

// A stack that the program made itself, and that goes.
static ucontext_t here, there;

static void on_another(void) {
	recurse(5);
	sink++;
}

static void contexts(void) {
	for (int i = 0; i < 60; i++) {
		size_t size = (size_t)(1 + i % 3) << 16;
		char *its = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(its != MAP_FAILED && !getcontext(&there));
		there.uc_stack.ss_sp = its;
		there.uc_stack.ss_size = size;
		there.uc_link = &here;
		makecontext(&there, on_another, 0);
		CHECK(!swapcontext(&here, &there));
		munmap(its, size);
		recurse(i % 9);
	}
}

// A library in the place of another, with frames of another size.
static void libraries(char **paths) {
	void *before = NULL;
	int same = 0;
	for (int i = 0; i < 100; i++) {
		void *library = dlopen(paths[i % 2], RTLD_NOW);
		CHECK(library);
		void (*run)(void (*)(void)) = (void (*)(void (*)(void)))dlsym(library, "run");
		CHECK(run);
		same += (void *)run == before;
		before = (void *)run;
		for (int j = 0; j < 3; j++)
			run(check);
		dlclose(library);
	}
	CHECK(same > 0);
}

static void scene_is(const char *name, void (*run)(void), int by_all) {
	scene = name;
	checks = by_rules_only = 0;
	run();
	fprintf(stderr, "%s: %d of %d by rules\n", name, by_rules_only, checks);
	CHECK(checks > 0 && by_rules_only * 100 >= checks * by_all);
}

static char **paths;
static void of_libraries(void) { libraries(paths); }

int main(int argc, char **argv) {
	alarm(540); // a deadlock ends, and a busy machine has the time
	CHECK(argc == 3 && unwinder.table);
	paths = argv + 1;
	scene_is("depths", depths, 100);
	scene_is("callers of the same size", alternating, 100);
	scene_is("sizes", sizes, 100);
	scene_is("jumps", jumps, 100);
	scene_is("signals", signals, 50);
	scene_is("threads", threads, 100);
	scene_is("contexts", contexts, 50);
	scene_is("libraries", of_libraries, 100);
	return 0;
}
#endif
