// Allocates in a function that a library calls back, and waits.
#include <stdio.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long);
int frameless(int (*back)(int), int n);

static volatile int sink;

static int take(int n) {
	unsigned long long p;
	sink += cuMemAlloc_v2(&p, 1 << n);
	return sink;
}

__attribute__((noinline)) static void layer(int n) {
	sink += frameless(take, n);
}

int main(void) {
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	layer(20);
	sink++;
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
