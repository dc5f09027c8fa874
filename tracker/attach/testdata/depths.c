// Allocates at depths from 1 to 140 calls below main, each twice; the size is the depth and what the compiler may not know.
#include <stdio.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long);

static volatile int sink;

__attribute__((noinline)) static void dive(int n, unsigned long size) {
	unsigned long long p;
	if (n > 1)
		dive(n - 1, size);
	else
		sink += cuMemAlloc_v2(&p, size);
	sink++;
}

int main(void) {
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	for (int round = 0; round < 2; round++)
		for (int n = 1; n <= 140; n++)
			dive(n, (unsigned long)(1000 * (round + 1) + n));
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
