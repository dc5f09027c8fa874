// Allocates by the functions of programs with a default stream in each thread, and in a green context. Then it prints what the emulated
// driver has live, and waits for the end of its input; and the same once the green context, and then its primary one, are gone.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long ptr;
typedef void *handle;
int cuInit(unsigned);
int cuCtxSetCurrent(handle);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuGreenCtxCreate(handle *, void *, int, unsigned);
int cuGreenCtxDestroy(handle);
int cuCtxFromGreenCtx(handle *, handle);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemAllocAsync(ptr *, size_t, handle);
int cuMemAllocAsync_ptsz(ptr *, size_t, handle);
int cuDeviceGetDefaultMemPool(handle *, int);
int cuMemAllocFromPoolAsync_ptsz(ptr *, size_t, handle, handle);
int cuMemFreeAsync_ptsz(ptr, handle);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
size_t gpuemu_live(uint64_t *, uint64_t *, size_t);

#define DO(call)                                                        \
	do {                                                            \
		int r_ = call;                                          \
		if (r_) {                                               \
			fprintf(stderr, "%s: %d\n", #call, r_);         \
			exit(1);                                        \
		}                                                       \
	} while (0)

static void show(void) {
	uint64_t at[16], bytes[16];
	size_t n = gpuemu_live(at, bytes, 16);
	for (size_t i = 0; i < n; i++)
		printf("live %llx %llu\n", (ptr)at[i], (ptr)bytes[i]);
	puts("done");
	fflush(stdout);
	getchar();
}

int main(void) {
	handle context, green, converted, pool;
	int (*by_driver)(ptr *, size_t, handle);
	ptr p, pooled[6];
	DO(cuInit(0));
	DO(cuDevicePrimaryCtxRetain(&context, 0));
	DO(cuCtxSetCurrent(context));
	DO(cuMemAllocAsync(&pooled[0], 1000, NULL));
	DO(cuMemAllocAsync_ptsz(&pooled[1], 1001, NULL));
	DO(cuMemAllocAsync_ptsz(&pooled[2], 1002, (handle)1)); // the legacy stream
	DO(cuDeviceGetDefaultMemPool(&pool, 0));
	DO(cuMemAllocFromPoolAsync_ptsz(&pooled[3], 1003, pool, NULL));
	DO(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&by_driver, 12000, 2, NULL)); // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
	DO(by_driver(&pooled[4], 1004, NULL));
	DO(cuMemAllocAsync_ptsz(&pooled[5], 1005, NULL));
	DO(cuMemFreeAsync_ptsz(pooled[5], NULL));

	DO(cuMemAlloc_v2(&p, 2000));
	DO(cuGreenCtxCreate(&green, &green, 0, 1));
	DO(cuCtxFromGreenCtx(&converted, green));
	DO(cuCtxSetCurrent(converted));
	DO(cuMemAlloc_v2(&p, 2001));
	show();
	DO(cuGreenCtxDestroy(green)); // what it allocated is in the primary context
	show();
	DO(cuCtxSetCurrent(context));
	for (int i = 0; i < 5; i++)
		DO(cuMemFreeAsync_ptsz(pooled[i], NULL));
	DO(cuDevicePrimaryCtxRelease_v2(0));
	show();
	return 7;
}
