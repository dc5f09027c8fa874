// Pinned host memory, up to GPUEMU_PINNED bytes a process.
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "settings.h"

enum { PORTABLE = 1, DEVICE_MAP = 2, WRITE_COMBINED = 4 };

typedef struct piece {
	void *at;
	size_t bytes;
	unsigned flags;
	struct piece *next;
} piece;

static piece *pieces;
static uint64_t pinned, most;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t whole(size_t bytes) { return ((uint64_t)bytes + 4095) / 4096 * 4096; }

static CUresult take(void **out, size_t bytes, unsigned flags) {
	if (!out || !bytes || flags > (PORTABLE | DEVICE_MAP | WRITE_COMBINED))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!most)
		most = settings_bytes("GPUEMU_PINNED", (uint64_t)8 << 30);
	CUresult r = OUT_OF_MEMORY;
	void *at = MAP_FAILED;
	if (bytes <= most && pinned + whole(bytes) <= most)
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at != MAP_FAILED) {
		piece *p = malloc(sizeof *p);
		*p = (piece){.at = at, .bytes = bytes, .flags = flags, .next = pieces};
		pieces = p;
		pinned += whole(bytes);
		*out = at;
		r = SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
	ENTER_CONTEXT();
	return take(out, bytes, flags);
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
	ENTER_CONTEXT();
	return take(out, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *at) {
	ENTER_CONTEXT();
	pthread_mutex_lock(&lock);
	piece **p = &pieces;
	while (*p && (*p)->at != at)
		p = &(*p)->next;
	piece *gone = *p;
	if (gone) {
		*p = gone->next;
		pinned -= whole(gone->bytes);
		munmap(gone->at, gone->bytes);
		free(gone);
	}
	pthread_mutex_unlock(&lock);
	return gone ? SUCCESS : INVALID_VALUE;
}

// Addresses are the same on both sides.
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags) {
	ENTER_CONTEXT();
	pthread_mutex_lock(&lock);
	piece *p = pieces;
	while (p && ((char *)at < (char *)p->at || (char *)at >= (char *)p->at + p->bytes))
		p = p->next;
	int ok = p && p->flags & DEVICE_MAP && out && !flags;
	pthread_mutex_unlock(&lock);
	if (!ok)
		return INVALID_VALUE;
	*out = (CUdeviceptr)(uintptr_t)at;
	return SUCCESS;
}

// gpuemu_live_host is gpuemu_live for pinned host memory.
EXPORT size_t gpuemu_live_host(uint64_t *at, uint64_t *bytes, size_t room) {
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (piece *p = pieces; p; p = p->next, n++) {
		if (n < room) {
			at[n] = (uint64_t)(uintptr_t)p->at;
			bytes[n] = p->bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	return n;
}
