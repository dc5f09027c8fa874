// Stream-ordered pools. A pool takes pages of the heap and keeps those that are freed: on the
// stream that freed them they are used again at once, on others when that stream has come so far.
// What a pool keeps beyond its release threshold goes back when the program next synchronises.
#include "driver.h"

#include <stdlib.h>

enum { ATTRIBUTES = 8, THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH, PINNED = 1, ON_DEVICE = 1 };

typedef struct {
	int type, handle_types;
	struct {
		int type, id;
	} where;
	void *windows;
	size_t most;
	unsigned char reserved[56];
} properties;

typedef struct block {
	CUdeviceptr at;
	uint64_t pages; // in bytes
	uint64_t bytes; // asked for; 0 of a free one
	CUstream stream; // that freed it
	long long done; // when that stream has come to the free, ns
	struct block *next;
} block;

typedef struct pool {
	int alive, device, own;
	uint64_t most; // 0: no limit
	uint64_t value[ATTRIBUTES + 1]; // by attribute
	block *blocks;
	struct pool *next;
} pool;

static pool *pools, *chosen[MAX_DEVICES], *standard[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count(pool *p, int what, int64_t bytes) {
	p->value[what] += (uint64_t)bytes;
	if (p->value[what + 1] < p->value[what])
		p->value[what + 1] = p->value[what];
}

static pool *create(int device, int own) {
	pool *p = calloc(1, sizeof *p);
	*p = (pool){.alive = 1, .device = device, .own = own, .next = pools};
	p->value[1] = p->value[2] = p->value[3] = 1;
	return pools = p;
}

static pool *default_pool(int device) {
	if (!standard[device])
		standard[device] = create(device, 0);
	return standard[device];
}

static int valid(pool *p) {
	pool *q = pools;
	while (q && q != p)
		q = q->next;
	return q && q->alive;
}

// trim gives free blocks back until the pool holds no more than that. Hold the lock.
static void trim(pool *p, uint64_t keep) {
	for (block **at = &p->blocks; *at && p->value[RESERVED] > keep;) {
		block *b = *at;
		if (b->bytes || b->done > clock_now()) {
			at = &b->next;
			continue;
		}
		count(p, RESERVED, -(int64_t)b->pages);
		heap_give(b->at);
		*at = b->next;
		free(b);
	}
}

void pool_synchronized(int device) {
	pthread_mutex_lock(&lock);
	for (pool *p = pools; p; p = p->next)
		if (p->device == device)
			trim(p, p->value[THRESHOLD]);
	pthread_mutex_unlock(&lock);
}

// reuse finds the smallest free block that is large enough and that work on a stream may have.
static block *reuse(pool *p, CUstream s, size_t bytes) {
	block *best = NULL;
	for (block *b = p->blocks; b; b = b->next)
		if (!b->bytes && b->pages >= bytes && (b->stream == s || b->done <= clock_now()) && (!best || b->pages < best->pages))
			best = b;
	return best;
}

static CUresult grow(pool *p, size_t bytes, block **out) {
	uint64_t pages = ((uint64_t)bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	if (pages < bytes || (p->most && p->value[RESERVED] + pages > p->most))
		return OUT_OF_MEMORY;
	CUdeviceptr at;
	CUresult r = heap_take(p->device, bytes, &at);
	if (r) {
		trim(p, 0);
		r = heap_take(p->device, bytes, &at);
	}
	if (r)
		return r;
	heap_resize(at, 0);
	*out = malloc(sizeof **out);
	**out = (block){.at = at, .pages = pages, .next = p->blocks};
	p->blocks = *out;
	count(p, RESERVED, (int64_t)pages);
	return SUCCESS;
}

static CUresult take(CUcontext ctx, CUdeviceptr *out, size_t bytes, pool *p, CUstream s) {
	if (!out || !bytes)
		return INVALID_VALUE;
	if (!clock_queue(ctx, s, 0))
		return INVALID_HANDLE;
	s = stream_of(ctx, s);
	pthread_mutex_lock(&lock);
	CUresult r = valid(p) ? SUCCESS : INVALID_VALUE;
	block *b = r ? NULL : reuse(p, s, bytes);
	if (!r && !b)
		r = grow(p, bytes, &b);
	if (!r) {
		b->bytes = bytes;
		heap_resize(b->at, bytes);
		count(p, USED, (int64_t)bytes);
		*out = b->at;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int pool_free(CUcontext ctx, CUdeviceptr at, CUstream s) {
	long long done = clock_queue(ctx, s, 0);
	s = stream_of(ctx, s);
	int found = 0;
	pthread_mutex_lock(&lock);
	for (pool *p = pools; p && !found; p = p->next) {
		for (block *b = p->blocks; b && !found; b = b->next) {
			if (b->at != at || !b->bytes)
				continue;
			found = 1;
			count(p, USED, -(int64_t)b->bytes);
			heap_resize(at, 0);
			b->bytes = 0;
			b->stream = s;
			b->done = done;
			if (!p->alive)
				trim(p, 0);
		}
	}
	pthread_mutex_unlock(&lock);
	return found;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, pool *p, CUstream s) {
	ENTER_CONTEXT();
	return take(ctx, out, bytes, p, s);
}

static pool *current_pool(CUcontext ctx) {
	pthread_mutex_lock(&lock);
	pool *p = chosen[ctx->device] ? chosen[ctx->device] : default_pool(ctx->device);
	pthread_mutex_unlock(&lock);
	return p;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream s) {
	ENTER_CONTEXT();
	return take(ctx, out, bytes, current_pool(ctx), s);
}

static CUresult free_async(CUcontext ctx, CUdeviceptr at, CUstream s) {
	if (!clock_queue(ctx, s, 0))
		return INVALID_HANDLE;
	return pool_free(ctx, at, s) ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s) {
	ENTER_CONTEXT();
	return free_async(ctx, at, s);
}

// The functions that programs compiled for default streams of each thread call: stream 0 is the thread's own.
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, pool *p, CUstream s) {
	ENTER_CONTEXT();
	return take(ctx, out, bytes, p, s ? s : PER_THREAD);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream s) {
	ENTER_CONTEXT();
	return take(ctx, out, bytes, current_pool(ctx), s ? s : PER_THREAD);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) {
	ENTER_CONTEXT();
	return free_async(ctx, at, s ? s : PER_THREAD);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(pool **out, CUdevice d) {
	ENTER();
	if (!out)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*out = default_pool(device_physical(d));
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice d, pool *p) {
	ENTER();
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	int ok = valid(p) && p->device == device_physical(d);
	if (ok)
		chosen[p->device] = p;
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemPoolCreate(pool **out, const properties *q) {
	ENTER();
	if (!out || !q || q->type != PINNED || q->handle_types || q->where.type != ON_DEVICE)
		return INVALID_VALUE;
	if (!device_valid(q->where.id))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*out = create(device_physical(q->where.id), 1);
	(*out)->most = q->most;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

// What is allocated of a destroyed pool stays until it is freed.
EXPORT CUresult cuMemPoolDestroy(pool *p) {
	ENTER();
	pthread_mutex_lock(&lock);
	int ok = valid(p) && p->own;
	if (ok) {
		p->alive = 0;
		if (chosen[p->device] == p)
			chosen[p->device] = NULL;
		trim(p, 0);
	}
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemPoolTrimTo(pool *p, size_t keep) {
	ENTER();
	pthread_mutex_lock(&lock);
	int ok = valid(p);
	if (ok)
		trim(p, keep);
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemPoolGetAttribute(pool *p, int key, void *value) {
	ENTER();
	pthread_mutex_lock(&lock);
	int ok = valid(p) && value && key >= 1 && key <= ATTRIBUTES;
	if (ok && key < THRESHOLD)
		*(int *)value = (int)p->value[key];
	else if (ok)
		*(uint64_t *)value = p->value[key];
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

// The high-water marks can be set to 0 only, which makes them the present levels.
EXPORT CUresult cuMemPoolSetAttribute(pool *p, int key, const void *value) {
	ENTER();
	pthread_mutex_lock(&lock);
	int ok = valid(p) && value && key >= 1 && key <= ATTRIBUTES && key != RESERVED && key != USED;
	if (ok && key < THRESHOLD)
		p->value[key] = (uint64_t)(*(const int *)value != 0);
	else if (ok && key == THRESHOLD)
		p->value[key] = *(const uint64_t *)value;
	else if (ok && !(ok = *(const uint64_t *)value == 0))
		;
	else if (ok)
		p->value[key] = p->value[key - 1];
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}
