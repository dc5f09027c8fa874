// Allocates below a frame of 20 KiB, without frame pointers but for main's, and waits; after a line, again.
#include <stdio.h>
#include <string.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long);

static volatile int sink;

__attribute__((noinline)) static void allocate(void) {
	unsigned long long p;
	sink += cuMemAlloc_v2(&p, 1 << 20);
}

__attribute__((noinline)) static void large(int n) {
	char room[20 << 10];
	memset(room, n, sizeof room);
	allocate();
	sink += room[sink & 1023];
}

__attribute__((noinline)) static void caller(int n) {
	large(n);
	sink++;
}

__attribute__((optimize("no-omit-frame-pointer"))) int main(void) {
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	do {
		caller(sink);
		puts("done");
		fflush(stdout);
	} while (getchar() == '\n');
	return 0;
}
