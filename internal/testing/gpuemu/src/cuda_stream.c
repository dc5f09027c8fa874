// Streams and events, as clocks: what is queued takes its time after what was
// queued before it, and an event is reached when its stream's clock gets there.
#include "driver.h"

#include <stdlib.h>

enum { STREAM = 0x73747265, EVENT = 0x6576656e, GONE = 0x676f6e65 };

// The objects are never freed, so that a stale handle is an error and no crash.
struct stream {
	int magic, priority;
	unsigned flags;
	CUcontext ctx;
	long long done;
};

struct event {
	int magic;
	unsigned flags;
	long long at; // 0: not recorded yet
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult create(CUcontext ctx, CUstream *out, unsigned flags, int priority) {
	if (!out || flags > 1)
		return INVALID_VALUE;
	CUstream s = calloc(1, sizeof *s);
	*s = (struct stream){.magic = STREAM, .ctx = ctx, .flags = flags, .priority = priority > 0 ? 0 : priority < -5 ? -5 : priority};
	*out = s;
	return SUCCESS;
}

CUstream stream_of(CUcontext ctx, CUstream s) {
	enum { DEVICES = 16 };
	static __thread CUstream own[DEVICES];
	if (s == LEGACY)
		return NULL;
	if (s != PER_THREAD)
		return s;
	CUstream *its = &own[ctx->device % DEVICES];
	if (!*its)
		create(ctx, its, 0, 0);
	return *its;
}

// The NULL stream waits for all others of its context, as the driver's does.
// It gives 0 for a stream that is none.
long long clock_queue(CUcontext ctx, CUstream s, long long ns) {
	s = stream_of(ctx, s);
	if (s && s->magic != STREAM)
		return 0;
	pthread_mutex_lock(&lock);
	long long start = clock_now(), before = s ? s->done : ctx->done;
	long long done = (before > start ? before : start) + ns;
	if (s)
		s->done = done;
	if (ctx->done < done)
		ctx->done = done;
	pthread_mutex_unlock(&lock);
	return done;
}

static int valid(CUstream s) { return !s || s == LEGACY || s == PER_THREAD || s->magic == STREAM; }
static long long done(CUcontext ctx, CUstream s) { return (s = stream_of(ctx, s)) ? s->done : ctx->done; }

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
	ENTER_CONTEXT();
	return create(ctx, out, flags, priority);
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) {
	ENTER_CONTEXT();
	return create(ctx, out, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s) {
	ENTER_CONTEXT();
	if (!s || s == LEGACY || s == PER_THREAD || !valid(s))
		return INVALID_HANDLE;
	s->magic = GONE;
	return SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream s) {
	ENTER_CONTEXT();
	if (!valid(s))
		return INVALID_HANDLE;
	return done(ctx, s) > clock_now() ? NOT_READY : SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream s) {
	ENTER_CONTEXT();
	if (!valid(s))
		return INVALID_HANDLE;
	clock_wait(done(ctx, s));
	pool_synchronized(ctx->device);
	return SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream s, unsigned *flags) {
	ENTER_CONTEXT();
	if (!valid(s))
		return INVALID_HANDLE;
	if (!flags)
		return INVALID_VALUE;
	*flags = (s = stream_of(ctx, s)) ? s->flags : 0;
	return SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream s, int *priority) {
	ENTER_CONTEXT();
	if (!valid(s))
		return INVALID_HANDLE;
	if (!priority)
		return INVALID_VALUE;
	*priority = (s = stream_of(ctx, s)) ? s->priority : 0;
	return SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
	ENTER_CONTEXT();
	(void)flags;
	if (!valid(s) || !e || e->magic != EVENT)
		return INVALID_HANDLE;
	long long ahead = e->at - clock_now();
	clock_queue(ctx, s, 0);
	if (ahead > 0 && (s = stream_of(ctx, s)) && s->done < e->at)
		s->done = e->at;
	return SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
	ENTER_CONTEXT();
	if (!out || flags > 7)
		return INVALID_VALUE;
	CUevent e = calloc(1, sizeof *e);
	*e = (struct event){.magic = EVENT, .flags = flags};
	*out = e;
	heap_account_events(1);
	return SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent e) {
	ENTER_CONTEXT();
	if (!e || e->magic != EVENT)
		return INVALID_HANDLE;
	e->magic = GONE;
	heap_account_events(-1);
	return SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s) {
	ENTER_CONTEXT();
	if (!e || e->magic != EVENT || !valid(s))
		return INVALID_HANDLE;
	e->at = clock_queue(ctx, s, 0);
	return SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent e) {
	ENTER_CONTEXT();
	if (!e || e->magic != EVENT)
		return INVALID_HANDLE;
	return e->at > clock_now() ? NOT_READY : SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent e) {
	ENTER_CONTEXT();
	if (!e || e->magic != EVENT)
		return INVALID_HANDLE;
	clock_wait(e->at);
	return SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
	ENTER_CONTEXT();
	enum { NO_TIMING = 2 };
	if (!ms)
		return INVALID_VALUE;
	if (!from || !to || from->magic != EVENT || to->magic != EVENT || !from->at || !to->at || (from->flags | to->flags) & NO_TIMING)
		return INVALID_HANDLE;
	if (from->at > clock_now() || to->at > clock_now())
		return NOT_READY;
	*ms = (float)((double)(to->at - from->at) / 1e6);
	return SUCCESS;
}

// gpuemu_queue is no driver's: it queues work that takes so many ns and uses n bytes at an
// address, to which it writes a value when it is done; a negative value is none. It stands for a kernel.
EXPORT CUresult gpuemu_queue(CUstream s, CUdeviceptr at, size_t n, long long ns, int value) {
	CUcontext ctx = context_current();
	if (ctx)
		s = stream_of(ctx, s);
	if (s && s->magic == STREAM)
		ctx = s->ctx;
	long long when = ctx ? clock_queue(ctx, s, ns) : 0;
	if (!when)
		return INVALID_HANDLE;
	if (value >= 0)
		clock_store(when, at, n, value);
	return SUCCESS;
}
