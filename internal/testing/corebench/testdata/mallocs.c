// Allocates and frees 32 bytes N times, 24 frames deep, and prints the processor time of the process in ns.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long pairs;
static volatile int depth;

__attribute__((noinline)) static void down(int left) {
	if (left > 0) {
		down(left - 1);
		depth++; // so that it is no tail call
		return;
	}
	for (long i = 0; i < pairs; i++) {
		void *volatile p = malloc(32);
		free(p);
	}
}

int main(int argc, char **argv) {
	struct timespec t;
	pairs = argc > 1 ? atol(argv[1]) : 0;
	down(21);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	printf("%lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
	return 0;
}
