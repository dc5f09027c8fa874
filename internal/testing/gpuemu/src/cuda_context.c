// Contexts: one stack of current contexts to each thread, as the driver has it.
#include "driver.h"

#include <stdlib.h>

enum { STACK = 4096 };
static __thread CUcontext stack[STACK];
static __thread int depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext all; // never freed: a stale handle is an error, not a crash
static CUcontext primary[MAX_DEVICES];
static unsigned primary_flags[MAX_DEVICES];

CUcontext context_current(void) { return depth ? stack[depth - 1] : NULL; }

static int known(CUcontext ctx) {
	pthread_mutex_lock(&lock);
	CUcontext c = all;
	while (c && c != ctx)
		c = c->next;
	pthread_mutex_unlock(&lock);
	return c != NULL;
}

static CUresult usable(CUcontext ctx) {
	if (!ctx || !known(ctx))
		return INVALID_CONTEXT;
	return ctx->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
}

// create makes a context and pays for it. Hold the lock.
static CUresult create(CUcontext *out, int device, unsigned flags, int is_primary) {
	int physical = device_physical(device);
	CUresult r = heap_account(physical, (int64_t)state_attach()->context, 0, 0, 1);
	if (r)
		return r;
	CUcontext ctx = calloc(1, sizeof *ctx);
	ctx->alive = 1;
	ctx->primary = is_primary;
	ctx->device = physical;
	ctx->ordinal = device;
	ctx->flags = flags;
	ctx->next = all;
	all = ctx;
	*out = ctx;
	return SUCCESS;
}

// destroy gives back the context and all that was allocated in it. Hold the lock.
static void destroy(CUcontext ctx) {
	ctx->alive = 0;
	heap_release(ctx);
	array_release(ctx);
	heap_account(ctx->device, -(int64_t)state_attach()->context, 0, 0, -1);
}

static CUresult push(CUcontext ctx) {
	if (depth == STACK)
		return OUT_OF_MEMORY;
	stack[depth++] = ctx;
	return SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice d) {
	ENTER_LOST(DEVICE_UNAVAILABLE);
	if (!out)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	CUresult r = create(out, d, flags, 0);
	pthread_mutex_unlock(&lock);
	return r ? r : push(*out);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx) {
	ENTER();
	CUresult r = usable(ctx);
	if (r)
		return r;
	if (ctx->primary)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	r = ctx->alive ? SUCCESS : CONTEXT_IS_DESTROYED; // another thread may have been quicker
	if (!r)
		destroy(ctx);
	pthread_mutex_unlock(&lock);
	if (!r && context_current() == ctx)
		depth--;
	return r;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
	ENTER();
	CUresult r = usable(ctx);
	return r ? r : push(ctx);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out) {
	ENTER();
	if (!depth)
		return INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
	ENTER();
	if (!ctx) {
		if (depth)
			depth--;
		return SUCCESS;
	}
	CUresult r = usable(ctx);
	if (r)
		return r;
	if (!depth)
		return push(ctx);
	stack[depth - 1] = ctx;
	return SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out) {
	ENTER();
	if (!out)
		return INVALID_VALUE;
	*out = context_current();
	return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *d) {
	ENTER_CONTEXT();
	if (!d)
		return INVALID_VALUE;
	*d = ctx->ordinal;
	return SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
	ENTER_CONTEXT();
	if (!flags)
		return INVALID_VALUE;
	*flags = ctx->flags;
	return SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext of, unsigned *version) {
	ENTER();
	CUresult r = usable(of ? of : context_current());
	if (r)
		return r;
	if (!version)
		return INVALID_VALUE;
	*version = 3020;
	return SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	ENTER_CONTEXT();
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
	ENTER_CONTEXT();
	clock_wait(ctx->done);
	pool_synchronized(ctx->device);
	return SUCCESS;
}

// retain makes the primary context if there is none. Hold the lock.
static CUresult retain(CUdevice d) {
	CUresult r = SUCCESS;
	if (!primary[d])
		r = create(&primary[d], d, primary_flags[d], 1);
	if (!r)
		primary[d]->retained++;
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d) {
	ENTER_LOST(DEVICE_UNAVAILABLE);
	if (!out)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	CUresult r = retain(d);
	if (!r)
		*out = primary[d];
	pthread_mutex_unlock(&lock);
	return r;
}

// drop ends the primary context, and what its green contexts allocated: the next retain makes a new one. Hold the lock.
static void drop(CUdevice d) {
	for (CUcontext c = all; c; c = c->next)
		if (c->green_of == primary[d]) {
			c->alive = 0;
			heap_release(c);
			array_release(c);
		}
	destroy(primary[d]);
	primary[d] = NULL;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
	ENTER();
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	CUresult r = primary[d] ? SUCCESS : INVALID_CONTEXT;
	if (!r && --primary[d]->retained == 0)
		drop(d);
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice d) {
	ENTER();
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (primary[d])
		drop(d);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
	ENTER();
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (flags)
		*flags = primary_flags[d];
	if (active)
		*active = primary[d] != NULL;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned flags) {
	ENTER();
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	primary_flags[d] = flags;
	if (primary[d])
		primary[d]->flags = flags;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

// A green context is a primary context with fewer resources, which are not emulated. Its handle stands for its context, too.
EXPORT CUresult cuGreenCtxCreate(CUcontext *out, void *resources, CUdevice d, unsigned flags) {
	ENTER_LOST(DEVICE_UNAVAILABLE);
	if (!out || !resources)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	CUresult r = retain(d);
	if (!r) {
		CUcontext ctx = calloc(1, sizeof *ctx);
		*ctx = (struct context){.alive = 1, .primary = 1, .device = primary[d]->device, .ordinal = d, .flags = flags, .green_of = primary[d], .next = all};
		*out = all = ctx;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUcontext green) {
	ENTER();
	CUresult r = usable(green);
	if (!r && (!out || !green->green_of))
		r = INVALID_VALUE;
	if (!r)
		*out = green;
	return r;
}

EXPORT CUresult cuGreenCtxDestroy(CUcontext green) {
	ENTER();
	CUresult r = usable(green);
	if (!r && !green->green_of)
		r = INVALID_VALUE;
	if (r)
		return r;
	pthread_mutex_lock(&lock);
	r = green->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
	green->alive = 0;
	if (!r && --primary[green->ordinal]->retained == 0)
		drop(green->ordinal);
	pthread_mutex_unlock(&lock);
	return r;
}
