// Arrays: they take device memory, and nothing can be copied to or from them.
#include "driver.h"

#include <stdlib.h>

typedef struct {
	size_t width, height;
	unsigned format, channels;
} layout;

typedef struct {
	size_t width, height, depth;
	unsigned format, channels, flags;
} layout3d;

typedef struct array {
	layout3d is;
	int device;
	CUcontext owner;
	uint64_t bytes, pages;
	struct array *next;
} array;

static array *arrays;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// element gives the bytes of a channel, 0 for a format that is none of the plain ones.
static unsigned element(unsigned format) {
	switch (format) {
	case 0x01: case 0x08: return 1;
	case 0x02: case 0x09: case 0x10: return 2;
	case 0x03: case 0x0a: case 0x20: return 4;
	}
	return 0;
}

static CUresult create(CUcontext ctx, array **out, const layout3d *is) {
	if (!out || !is || !is->width || !element(is->format) || (is->channels != 1 && is->channels != 2 && is->channels != 4))
		return INVALID_VALUE;
	uint64_t bytes = (uint64_t)element(is->format) * is->channels;
	const size_t dims[] = {is->width, is->height, is->depth};
	for (int i = 0; i < 3; i++)
		if (__builtin_mul_overflow(bytes, dims[i] ? dims[i] : 1, &bytes) || bytes > (uint64_t)1 << 50)
			return INVALID_VALUE;
	uint64_t pages = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	CUresult r = heap_account(ctx->device, (int64_t)pages, (int64_t)bytes, 1, 0);
	if (r)
		return r;
	array *a = malloc(sizeof *a);
	pthread_mutex_lock(&lock);
	*a = (array){.is = *is, .device = ctx->device, .owner = ctx, .bytes = bytes, .pages = pages, .next = arrays};
	arrays = a;
	pthread_mutex_unlock(&lock);
	*out = a;
	return SUCCESS;
}

// drop takes an array out. Hold the lock.
static void drop(array **at) {
	array *gone = *at;
	*at = gone->next;
	heap_account(gone->device, -(int64_t)gone->pages, -(int64_t)gone->bytes, -1, 0);
	free(gone);
}

static array **find(array *a) {
	array **at = &arrays;
	while (*at && *at != a)
		at = &(*at)->next;
	return at;
}

void array_release(CUcontext ctx) {
	pthread_mutex_lock(&lock);
	for (array **at = &arrays; *at;) {
		if ((*at)->owner == ctx)
			drop(at);
		else
			at = &(*at)->next;
	}
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuArrayCreate_v2(array **out, const layout *is) {
	ENTER_CONTEXT();
	if (!is)
		return INVALID_VALUE;
	return create(ctx, out, &(layout3d){.width = is->width, .height = is->height, .format = is->format, .channels = is->channels});
}

EXPORT CUresult cuArray3DCreate_v2(array **out, const layout3d *is) {
	ENTER_CONTEXT();
	return create(ctx, out, is);
}

EXPORT CUresult cuArrayDestroy(array *a) {
	ENTER_CONTEXT();
	pthread_mutex_lock(&lock);
	array **at = find(a);
	int ok = *at != NULL;
	if (ok)
		drop(at);
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_HANDLE;
}

EXPORT CUresult cuArrayGetDescriptor_v2(layout *out, array *a) {
	ENTER_CONTEXT();
	pthread_mutex_lock(&lock);
	int ok = out && *find(a);
	if (ok)
		*out = (layout){a->is.width, a->is.height, a->is.format, a->is.channels};
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_HANDLE;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(layout3d *out, array *a) {
	ENTER_CONTEXT();
	pthread_mutex_lock(&lock);
	int ok = out && *find(a);
	if (ok)
		*out = a->is;
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_HANDLE;
}

// gpuemu_live_arrays is gpuemu_live for arrays, by their handles.
EXPORT size_t gpuemu_live_arrays(uint64_t *at, uint64_t *bytes, size_t room) {
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (array *a = arrays; a; a = a->next, n++) {
		if (n < room) {
			at[n] = (uint64_t)(uintptr_t)a;
			bytes[n] = a->bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	return n;
}
