// A stand-in for HIP's library: two devices of 1 GiB, which give out addresses and have no memory. As in HIP, a
// thread has a current device, which is the first until it says otherwise.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { hipSuccess, hipErrorInvalidValue, hipErrorOutOfMemory, hipErrorInvalidDevice = 101 };

static const size_t total = 1 << 30;

struct block {
	struct block *next;
	uintptr_t at;
	size_t size;
	int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *live;
static size_t used[2];
static uintptr_t unused = 1L << 40;
static __thread int current;

int hipSetDevice(int device) {
	if (device < 0 || device > 1)
		return hipErrorInvalidDevice;
	current = device;
	return hipSuccess;
}

int hipMalloc(void **p, size_t size) {
	int code = hipErrorOutOfMemory;
	pthread_mutex_lock(&lock);
	if (size <= total - used[current]) {
		struct block *b = malloc(sizeof *b);
		*b = (struct block){live, unused, size, current};
		unused += (size + 4095) / 4096 * 4096;
		used[current] += size;
		live = b;
		*p = (void *)b->at;
		code = hipSuccess;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int hipFree(void *p) {
	int code = p == NULL ? hipSuccess : hipErrorInvalidValue;
	pthread_mutex_lock(&lock);
	for (struct block **b = &live; *b != NULL; b = &(*b)->next)
		if ((*b)->at == (uintptr_t)p) {
			struct block *gone = *b;
			*b = gone->next;
			used[gone->device] -= gone->size;
			free(gone);
			code = hipSuccess;
			break;
		}
	pthread_mutex_unlock(&lock);
	return code;
}

int hipMemGetInfo(size_t *unused_bytes, size_t *total_bytes) {
	pthread_mutex_lock(&lock);
	*unused_bytes = total - used[current];
	*total_bytes = total;
	pthread_mutex_unlock(&lock);
	return hipSuccess;
}

const char *hipGetErrorString(int code) {
	switch (code) {
	case hipSuccess: return "no error";
	case hipErrorInvalidValue: return "invalid argument";
	case hipErrorOutOfMemory: return "out of memory";
	case hipErrorInvalidDevice: return "invalid device ordinal";
	}
	return "unknown error";
}
