// Allocates N buffers that it keeps, each on a call stack of its own, and then allocates and frees M more on the same stacks in turn.
//
//	held N M
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long);

typedef unsigned long long pointer;

static int left(unsigned path, int depth, pointer *p);

// The lowest bits of path say which function calls which: 17 calls have 131,072 paths.
__attribute__((noinline)) static int right(unsigned path, int depth, pointer *p) {
	int failed = !depth ? cuMemAlloc_v2(p, 4096) : path & 1 ? right(path >> 1, depth - 1, p) : left(path >> 1, depth - 1, p);
	__asm__ volatile("nop"); // no tail call
	return failed;
}

__attribute__((noinline)) static int left(unsigned path, int depth, pointer *p) {
	int failed = !depth ? cuMemAlloc_v2(p, 4096) : path & 1 ? right(path >> 1, depth - 1, p) : left(path >> 1, depth - 1, p);
	__asm__ volatile("");
	return failed;
}

int main(int argc, char **argv) {
	void *context;
	pointer p;
	if (argc != 3 || cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 2;
	unsigned held = (unsigned)atol(argv[1]);
	for (unsigned i = 0; i < held; i++)
		if (left(i, 17, &p))
			return 3;
	for (long i = 0; i < atol(argv[2]); i++)
		if (left((unsigned)i % held, 17, &p) || cuMemFree_v2(p))
			return 4;
	return 0;
}
