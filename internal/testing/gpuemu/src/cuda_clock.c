// The clock that the device's work goes by: the machine's own, or one that tests hold and
// move by hand. While it is held, a call that waits moves it as far as it would have waited, and
// fills are done when it gets there.
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// A store is a fill that is still to come, in the order of its time.
typedef struct store {
	long long when;
	CUdeviceptr at;
	size_t bytes;
	int value;
	struct store *next;
} store;

static store *stores;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long long monotonic(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int clock_held(void) {
	state *s = state_attach();
	return s && __atomic_load_n(&s->held, __ATOMIC_ACQUIRE);
}

// held_now begins at the time at which somebody first asks.
static long long held_now(state *s) {
	uint64_t none = 0;
	__atomic_compare_exchange_n(&s->base, &none, (uint64_t)monotonic(), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return (long long)(__atomic_load_n(&s->base, __ATOMIC_ACQUIRE) + __atomic_load_n(&s->advanced, __ATOMIC_ACQUIRE));
}

static void settle(long long now) {
	pthread_mutex_lock(&lock);
	while (stores && stores->when <= now) {
		store *s = stores;
		stores = s->next;
		if (heap_owns(s->at) ? heap_range(s->at, s->bytes, 1) : virtual_range(s->at, s->bytes))
			memset((void *)(uintptr_t)s->at, s->value, s->bytes);
		free(s);
	}
	pthread_mutex_unlock(&lock);
}

long long clock_now(void) {
	if (!clock_held())
		return monotonic();
	long long now = held_now(state_attach());
	settle(now);
	return now;
}

static void advance(state *s, long long until) {
	for (;;) {
		uint64_t before = __atomic_load_n(&s->advanced, __ATOMIC_ACQUIRE);
		long long left = until - held_now(s);
		if (left <= 0)
			return;
		if (__atomic_compare_exchange_n(&s->advanced, &before, before + (uint64_t)left, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return;
	}
}

void clock_wait(long long until) {
	if (clock_held()) {
		advance(state_attach(), until);
		clock_now();
		return;
	}
	long long left = until - monotonic();
	if (left > 0)
		nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
}

void clock_drain(CUcontext ctx) {
	if (clock_held())
		clock_wait(ctx->done);
}

void clock_store(long long when, CUdeviceptr at, size_t bytes, int value) {
	store *s = malloc(sizeof *s);
	*s = (store){.when = when, .at = at, .bytes = bytes, .value = value};
	pthread_mutex_lock(&lock);
	store **place = &stores;
	while (*place && (*place)->when <= when)
		place = &(*place)->next;
	s->next = *place;
	*place = s;
	pthread_mutex_unlock(&lock);
	clock_now();
}
