// Allocates and frees on the CUDA driver as its arguments say, then prints what the
// emulated driver has live and waits for the end of its input.
//
//	client [wait] [pause] [free] [kinds] [contexts] [threads N] [leak N] [churn N] [foreign] [big] [fork] [closeall] ... [exec COMMAND...]
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef LINKED
#include <dlfcn.h>
#endif

typedef unsigned long long ptr;
typedef void *handle;

// X-macro: every function that is used, with its arguments.
#define FUNCTIONS                                              \
	X(cuInit, (unsigned))                                  \
	X(cuCtxCreate_v2, (handle *, unsigned, int))           \
	X(cuCtxDestroy_v2, (handle))                           \
	X(cuCtxSetCurrent, (handle))                           \
	X(cuDevicePrimaryCtxRetain, (handle *, int))           \
	X(cuDevicePrimaryCtxRelease_v2, (int))                 \
	X(cuDevicePrimaryCtxReset_v2, (int))                   \
	X(cuMemAlloc_v2, (ptr *, size_t))                      \
	X(cuMemAllocManaged, (ptr *, size_t, unsigned))        \
	X(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) \
	X(cuMemFree_v2, (ptr))

#ifdef LINKED
#define X(name, args) int name args;
FUNCTIONS
#undef X
size_t gpuemu_live(uint64_t *, uint64_t *, size_t);
#else
#define X(name, args) static int(*name) args;
FUNCTIONS
#undef X
static size_t (*gpuemu_live)(uint64_t *, uint64_t *, size_t);
static int (*get)(const char *, void **, int, uint64_t, void *);

// open finds the functions by dlsym, or as NVIDIA's runtime does by cuGetProcAddress_v2.
static void open_driver(int by_driver) {
	const char *name = getenv("CUDA_LIBRARY");
	void *lib = dlopen(name ? name : "libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	*(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
#define X(name, args)                                          \
	if (!by_driver)                                        \
		*(void **)&name = dlsym(lib, #name);           \
	else if (get(#name, (void **)&name, 12000, 0, NULL))   \
		exit(1);
	FUNCTIONS
#undef X
	*(void **)&gpuemu_live = dlsym(lib, "gpuemu_live");
}
#endif

static handle context;

__attribute__((noinline)) static ptr load_weights(size_t n) {
	ptr p = 0;
	if (cuMemAlloc_v2(&p, n))
		p = 0;
	__asm__ volatile("" ::: "memory"); // no tail call
	return p;
}

__attribute__((noinline)) static ptr train(size_t n) {
	ptr p = load_weights(n);
	__asm__ volatile("" ::: "memory");
	return p;
}

static ptr kept[64][32]; // by thread

static void *worker(void *seed) {
	ptr *mine = kept[(uintptr_t)seed % 64];
	unsigned r = (unsigned)(uintptr_t)seed;
	cuCtxSetCurrent(context);
	for (int i = 0; i < 500; i++) {
		ptr *p = &mine[rand_r(&r) % 32];
		if (*p) {
			cuMemFree_v2(*p);
			*p = 0;
		} else {
			*p = load_weights(1 + rand_r(&r) % (rand_r(&r) % 8 ? 4096 : 4 << 20));
		}
	}
	return NULL;
}

static void threads(int n) {
	static uintptr_t round; // another seed each time
	pthread_t t[64];
	round++;
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, worker, (void *)(64 * round + (uintptr_t)i));
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

static void *pairs(void *n) {
	cuCtxSetCurrent(context);
	for (uintptr_t i = 0; i < (uintptr_t)n; i++)
		cuMemFree_v2(train(4096));
	train(4096);
	return NULL;
}

static void many(int n, uintptr_t of) {
	pthread_t t[n];
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, pairs, (void *)of);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

static void kinds(void) {
	ptr p;
	size_t pitch;
	cuMemAllocManaged(&p, 3 << 20, 1);
	cuMemAllocPitch_v2(&p, &pitch, 1000, 100, 4);
	train(12345);
}

static void contexts(void) {
	handle other, primary;
	cuCtxCreate_v2(&other, 0, 0);
	train(1 << 20);
	train(77);
	cuCtxDestroy_v2(other);
	cuDevicePrimaryCtxRetain(&primary, 0);
	cuDevicePrimaryCtxRetain(&primary, 0);
	cuCtxSetCurrent(primary);
	train(4 << 20);
	cuDevicePrimaryCtxRelease_v2(0); // one holds it still
	cuCtxSetCurrent(context);
}

static void churn(int n) {
	struct timespec from, to;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (int i = 0; i < n; i++)
		cuMemFree_v2(train(4096));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	printf("churn %lld\n", (long long)(to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
}

static uint64_t at[1 << 16], bytes[1 << 16];

static void list(void) {
	size_t n = gpuemu_live(at, bytes, 1 << 16);
	for (size_t i = 0; i < n; i++)
		printf("live %llx %llu\n", (unsigned long long)at[i], (unsigned long long)bytes[i]);
	printf("done\n");
	fflush(stdout);
}

int main(int argc, char **argv) {
	char **after = NULL;
#ifndef LINKED
	open_driver(getenv("BY_DRIVER") != NULL);
#endif
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "wait"))
			getchar();
		if (!strcmp(argv[i], "pause")) {
			list();
			while (getchar() != '\n')
				;
		}
		if (!strcmp(argv[i], "free"))
			for (size_t n = gpuemu_live(at, bytes, 1 << 16); n > 0; n--)
				cuMemFree_v2(at[n - 1]);
		if (!strcmp(argv[i], "kinds"))
			kinds();
		if (!strcmp(argv[i], "contexts"))
			contexts();
		if (!strcmp(argv[i], "release"))
			cuDevicePrimaryCtxRelease_v2(0);
		if (!strcmp(argv[i], "threads"))
			threads(atoi(argv[++i]));
		if (!strcmp(argv[i], "many"))
			many(200, (uintptr_t)atoi(argv[++i]));
		if (!strcmp(argv[i], "leak"))
			for (int n = atoi(argv[++i]); n > 0; n--)
				train(1 << 20);
		if (!strcmp(argv[i], "churn"))
			churn(atoi(argv[++i]));
		if (!strcmp(argv[i], "fork") && fork() == 0)
			_exit(0);
		if (!strcmp(argv[i], "closeall")) {
			for (int fd = 3; fd < 1024; fd++)
				close(fd);
			for (int n = 0; n < 300; n++) // what has the watcher's number now is this program's
				open("/dev/full", O_WRONLY);
		}
		if (!strcmp(argv[i], "exec"))
			after = &argv[i + 1];
		if (!strcmp(argv[i], "foreign"))
			cuMemFree_v2(train(100) + 8); // fails
		if (!strcmp(argv[i], "big"))
			train((size_t)1 << 50); // fails
	}
	list();
	while (getchar() != EOF)
		;
	if (after)
		execvp(after[0], after);
	return 7;
}
