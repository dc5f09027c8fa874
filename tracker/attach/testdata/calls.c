// Allocates 1000 times on random call stacks of functions that keep no frame pointer, and prints, for each
// allocation, its size and its callers as the C library finds them:
//
//	SIZE ADDRESS...
//	done
//
// With arguments it allocates and frees N times, some 20 calls deep, and prints the processor time in ns: each time on a stack of its own,
// or always on the same.
//
//	calls new|same N
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long);

static volatile int sink;
static unsigned seed = 1;
static int next(int n) { return rand_r(&seed) % n; }
static void step(int depth);
static int timed;

__attribute__((noinline)) static void allocate(void) {
	static size_t size = 256;
	void *callers[64];
	unsigned long long p;
	size += timed ? 0 : 256;
	if (cuMemAlloc_v2(&p, size))
		exit(4);
	if (timed) {
		cuMemFree_v2(p);
		return;
	}
	int n = backtrace(callers, 64);
	printf("%zu", size);
	for (int i = 0; i < n; i++)
		printf(" %lx", (unsigned long)callers[i]);
	putchar('\n');
}

__attribute__((noinline)) static void plain(int depth) { step(depth); sink++; }

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int depth) {
	int x = a * b + sink, y = c * d + sink, z = e * f;
	step(depth);
	return sink += x + y + z + a + b + c + d + e + f;
}

__attribute__((noinline)) static void sized(int depth) {
	size_t n = 1 + (size_t)next(3000);
	char *p = alloca(n);
	memset(p, depth, n);
	step(depth);
	sink += p[n / 2];
}

__attribute__((noinline)) static void aligned(int depth) {
	_Alignas(64) volatile char p[256];
	p[depth] = 1;
	step(depth);
	sink += p[depth];
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void framed(int depth) { step(depth); sink++; }

static __thread int sorting;

static int compare(const void *a, const void *b) {
	if (sorting >= 0) {
		int depth = sorting;
		sorting = -1;
		step(depth);
	}
	return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) static void sorted(int depth) {
	int list[] = {3, 1, 2};
	sorting = depth;
	qsort(list, 3, sizeof *list, compare);
	sink += list[0];
}

static void *thread(void *depth) {
	step((int)(size_t)depth);
	sink++;
	return depth;
}

static void *context;

static void *begin(void *depth) {
	cuCtxSetCurrent(context);
	return thread(depth);
}

__attribute__((noinline)) static void elsewhere(int depth) {
	pthread_t t;
	pthread_create(&t, NULL, begin, (void *)(size_t)depth);
	pthread_join(t, NULL);
}

__attribute__((noinline)) static void step(int depth) {
	if (depth == 0) {
		allocate();
		return;
	}
	switch (next(8)) {
	case 0: many(1, 2, 3, 4, 5, 6, depth - 1); break;
	case 1: sized(depth - 1); break;
	case 2: aligned(depth - 1); break;
	case 3: framed(depth - 1); break;
	case 4: sorted(depth - 1); break;
	case 5: if (!timed && next(4) == 0) { elsewhere(depth - 1); break; } // fall through
	default: plain(depth - 1);
	}
	sink++;
}

static void churn(int n, int same) {
	struct timespec from, to;
	timed = 1;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (int i = 0; i < n; i++) {
		if (same)
			seed = 1;
		step(10);
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	printf("churn %lld\ndone\n", (long long)(to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
	fflush(stdout);
	getchar();
}

int main(int argc, char **argv) {
	raise(SIGURG); // see callers.py
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	if (argc == 3) {
		churn(atoi(argv[2]), !strcmp(argv[1], "same"));
		return 0;
	}
	for (int i = 0; i < 1000; i++)
		step(next(12));
	printf("done\n");
	fflush(stdout);
	getchar();
	return 0;
}
