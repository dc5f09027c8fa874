// Leak serves requests on a GPU and keeps one buffer of every tenth: gpumemtrack attach
// finds the line. It is built against any libcuda.so.1:
//
//	gcc -g -O1 -fno-omit-frame-pointer -o leak leak.c -l:libcuda.so.1
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

static void check(int code) {
	if (code) {
		fprintf(stderr, "CUDA error %d\n", code);
		exit(1);
	}
}

static unsigned long long new_buffer(size_t bytes) {
	unsigned long long address = 0;
	check(cuMemAlloc_v2(&address, bytes));
	return address;
}

static unsigned long long load_weights(void) { return new_buffer(256 << 20); }

static void decode(int request) {
	unsigned long long cache = new_buffer(1 << 20);
	usleep(2000);
	if (request % 10 != 0) // forgets the others
		check(cuMemFree_v2(cache));
}

int main(int argc, char **argv) {
	int requests = argc > 1 ? atoi(argv[1]) : 3000;
	void *context;
	check(cuInit(0));
	check(cuCtxCreate_v2(&context, 0, 0));
	unsigned long long weights = load_weights();
	for (int request = 0; request < requests; request++)
		decode(request);
	check(cuMemFree_v2(weights));
	return 0;
}
