// Calls the CUDA driver as lines on stdin say, and answers each with one line:
// "ok", with what there is to tell, or "error" and the driver's code.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef void *handle;

int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDeviceGetName(char *, int, int);
int cuDeviceGetPCIBusId(char *, int, int);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxDestroy_v2(handle);
int cuCtxSetCurrent(handle);
int cuCtxGetCurrent(handle *);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemAllocManaged(ptr *, size_t, unsigned);
int cuMemAllocPitch_v2(ptr *, size_t *, size_t, size_t, unsigned);
int cuMemFree_v2(ptr);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemGetAddressRange_v2(ptr *, size_t *, ptr);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoD_v2(ptr, ptr, size_t);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, handle);
int cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuMemsetD2D32_v2(ptr, size_t, unsigned, size_t, size_t);
int cuStreamCreate(handle *, unsigned);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventQuery(handle);
int cuEventSynchronize(handle);
int cuEventElapsedTime(float *, handle, handle);
int cuModuleLoad(handle *, const char *);

static ptr buffers[256]; // by the letter that names them
static handle contexts[8];
static int context_count;
static size_t workers_failed;

static void answer(int code, const char *text) {
	if (code)
		printf("error %d\n", code);
	else
		printf("ok%s%s\n", *text ? " " : "", text);
	fflush(stdout);
}

static void check(int code) {
	if (code)
		__atomic_add_fetch(&workers_failed, 1, __ATOMIC_RELAXED);
}

static void *worker(void *context) {
	ptr mine[64] = {0};
	unsigned seed = (unsigned)(size_t)&mine;
	check(cuCtxSetCurrent(context));
	for (int i = 0; i < 4000; i++) {
		ptr *p = &mine[rand_r(&seed) % 64];
		if (*p) {
			check(cuMemFree_v2(*p));
			*p = 0;
		} else {
			check(cuMemAlloc_v2(p, 1 + rand_r(&seed) % (rand_r(&seed) % 8 ? 4096 : 4 << 20)));
			check(cuMemsetD8_v2(*p, 1, 1));
		}
	}
	for (int i = 0; i < 64; i++)
		check(cuMemFree_v2(mine[i]));
	return NULL;
}

static int work(int threads) {
	pthread_t all[16];
	handle context;
	int code = cuCtxGetCurrent(&context);
	for (int i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, worker, context);
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	return code ? code : (int)workers_failed;
}

static void timing(char *text, int *code) {
	static char host[8 << 20];
	handle stream, from, to;
	float ms;
	ptr p;
	*code = cuMemAlloc_v2(&p, sizeof host) || cuStreamCreate(&stream, 0) || cuEventCreate(&from, 0) || cuEventCreate(&to, 0);
	*code = *code || cuEventRecord(from, stream) || cuMemcpyHtoDAsync_v2(p, host, sizeof host, stream) || cuEventRecord(to, stream);
	int before = cuEventQuery(to), early = cuEventElapsedTime(&ms, from, to);
	*code = *code || cuEventSynchronize(to) || cuEventElapsedTime(&ms, from, to) || cuMemFree_v2(p);
	sprintf(text, "%d %d %.3f", before, early, ms);
}

static void run(const char *line) {
	char verb[16] = "", name = 0, text[4096] = "";
	unsigned long long a = 0, b = 0;
	size_t x = 0, y = 0;
	ptr range;
	sscanf(line, "%15s", verb);
	const char *rest = line + strlen(verb);
	int code = 0;
#define IS(word) (!strcmp(verb, word))
#define NAMED sscanf(rest, " %c %llu %llu", &name, &a, &b), (void)0
	if (IS("init")) code = cuInit(0);
	else if (IS("count")) code = cuDeviceGetCount((int *)&x), sprintf(text, "%d", (int)x);
	else if (IS("name")) code = cuDeviceGetName(text, sizeof text, atoi(rest));
	else if (IS("bus")) code = cuDeviceGetPCIBusId(text, sizeof text, atoi(rest));
	else if (IS("retain")) (code = cuDevicePrimaryCtxRetain(&contexts[context_count], atoi(rest))) || (code = cuCtxSetCurrent(contexts[context_count++]));
	else if (IS("release")) code = cuDevicePrimaryCtxRelease_v2(atoi(rest));
	else if (IS("create")) (code = cuCtxCreate_v2(&contexts[context_count], 0, atoi(rest))) || context_count++;
	else if (IS("destroy")) code = cuCtxDestroy_v2(contexts[atoi(rest)]);
	else if (IS("current")) code = cuCtxSetCurrent(contexts[atoi(rest)]);
	else if (IS("nocurrent")) code = cuCtxSetCurrent(NULL);
	else if (IS("sync")) code = cuCtxSynchronize();
	else if (IS("alloc")) NAMED, code = cuMemAlloc_v2(&buffers[(int)name], a), sprintf(text, "%llx", buffers[(int)name]);
	else if (IS("managed")) NAMED, code = cuMemAllocManaged(&buffers[(int)name], a, 1);
	else if (IS("pitch")) NAMED, code = cuMemAllocPitch_v2(&buffers[(int)name], &x, a, b, 4), sprintf(text, "%zu", x);
	else if (IS("free")) NAMED, code = cuMemFree_v2(buffers[(int)name] + a);
	else if (IS("foreign")) code = cuMemFree_v2(0xdead0000);
	else if (IS("info")) code = cuMemGetInfo_v2(&x, &y), sprintf(text, "%zu of %zu", x, y);
	else if (IS("range")) NAMED, code = cuMemGetAddressRange_v2(&range, &x, buffers[(int)name] + a), sprintf(text, "%llu in %zu", buffers[(int)name] + a - range, x);
	else if (IS("write")) NAMED, code = cuMemcpyHtoD_v2(buffers[(int)name] + a, strrchr(line, ' ') + 1, strlen(strrchr(line, ' ') + 1));
	else if (IS("read")) NAMED, code = cuMemcpyDtoH_v2(text, buffers[(int)name] + a, b);
	else if (IS("copy")) code = cuMemcpyDtoD_v2(buffers[(int)rest[1]], buffers[(int)rest[3]], strtoull(rest + 4, NULL, 10));
	else if (IS("fill")) NAMED, code = cuMemsetD8_v2(buffers[(int)name], (unsigned char)a, b);
	else if (IS("rows")) NAMED, code = cuMemsetD2D32_v2(buffers[(int)name], a, 0x41424344, 1, b);
	else if (IS("threads")) code = work(atoi(rest));
	else if (IS("timing")) timing(text, &code);
	else if (IS("module")) code = cuModuleLoad(NULL, "none");
	else if (IS("pid")) sprintf(text, "%d", (int)getpid());
	else code = -1;
	answer(code, text);
}

int main(void) {
	char line[4096];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		run(line);
	}
	return 0;
}
