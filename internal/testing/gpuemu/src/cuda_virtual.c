// Virtual memory: addresses that are reserved, memory that is created, and the
// two brought together. Addresses without memory cannot be touched, as on a GPU.
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "settings.h"

typedef struct {
	int type, id;
} location;

typedef struct {
	int type, handle_types;
	location where;
	void *windows;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} properties;

typedef struct {
	location where;
	int flags;
} access;

enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3 };

// memory lives for as long as it has a handle or is mapped.
typedef struct {
	int device;
	size_t bytes;
	unsigned users;
} memory;

typedef struct range {
	CUdeviceptr at;
	size_t bytes;
	memory *memory; // of a mapping
	int open; // to be read and written
	void *raw; // of a reservation: what mmap gave
	struct range *next;
} range;

static range *reservations, *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int inside(range *r, CUdeviceptr at, size_t n) {
	return at >= r->at && at - r->at < r->bytes && n <= r->bytes - (at - r->at);
}

static range **around(range **list, CUdeviceptr at, size_t n) {
	while (*list && !inside(*list, at, n))
		list = &(*list)->next;
	return list;
}

// overlaps says whether anything is mapped in a range.
static int overlaps(CUdeviceptr at, size_t n) {
	for (range *m = mappings; m; m = m->next)
		if (m->at < at + n && at < m->at + m->bytes)
			return 1;
	return 0;
}

// covered says whether a range is mapped without a gap, by whole mappings if whole is set,
// and by open ones if open is.
static int covered(CUdeviceptr at, size_t n, int whole, int open) {
	for (CUdeviceptr end = at + n; at < end;) {
		range *m = *around(&mappings, at, 1);
		if (!m || (whole && (m->at != at || m->bytes > end - at)) || (open && !m->open))
			return 0;
		at = m->at + m->bytes;
	}
	return 1;
}

static void leave(memory *m) {
	if (--m->users)
		return;
	heap_account(m->device, -(int64_t)m->bytes, -(int64_t)m->bytes, -1, 0);
	free(m);
}

static void add(range **list, range r) {
	range *copy = malloc(sizeof *copy);
	*copy = r;
	copy->next = *list;
	*list = copy;
}

static void drop(range **at) {
	range *gone = *at;
	*at = gone->next;
	free(gone);
}

int virtual_owns(CUdeviceptr at) {
	pthread_mutex_lock(&lock);
	int ok = *around(&reservations, at, 1) != NULL;
	pthread_mutex_unlock(&lock);
	return ok;
}

int virtual_range(CUdeviceptr at, size_t n) {
	pthread_mutex_lock(&lock);
	int ok = covered(at, n, 0, 1);
	pthread_mutex_unlock(&lock);
	return ok;
}

// granularity is the unit of created memory.
static uint64_t granularity(void) {
	static uint64_t unit;
	if (!unit)
		unit = settings_bytes("GPUEMU_GRANULARITY", PAGE_BYTES);
	return unit;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const properties *p, int option) {
	ENTER();
	if (!out || !p || option < 0 || option > 1)
		return INVALID_VALUE;
	*out = granularity();
	return SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
	ENTER();
	if (!out || !bytes || bytes % PAGE_BYTES || alignment || wish || flags)
		return INVALID_VALUE;
	void *raw = mmap(NULL, bytes + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (raw == MAP_FAILED)
		return OUT_OF_MEMORY;
	*out = ((CUdeviceptr)(uintptr_t)raw + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	pthread_mutex_lock(&lock);
	add(&reservations, (range){.at = *out, .bytes = bytes, .raw = raw});
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
	ENTER();
	pthread_mutex_lock(&lock);
	range **r = around(&reservations, at, bytes);
	int ok = *r && (*r)->at == at && (*r)->bytes == bytes && !overlaps(at, bytes);
	if (ok) {
		munmap((*r)->raw, bytes + PAGE_BYTES);
		drop(r);
	}
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemCreate(memory **out, size_t bytes, const properties *p, unsigned long long flags) {
	ENTER();
	if (!out || !bytes || bytes % granularity() || flags || !p || p->type != PINNED || p->where.type != DEVICE)
		return INVALID_VALUE;
	if (!device_valid(p->where.id))
		return INVALID_DEVICE;
	int device = device_physical(p->where.id);
	CUresult r = heap_account(device, (int64_t)bytes, (int64_t)bytes, 1, 0);
	if (r)
		return r;
	*out = malloc(sizeof **out);
	**out = (memory){.device = device, .bytes = bytes, .users = 1};
	return SUCCESS;
}

EXPORT CUresult cuMemRelease(memory *m) {
	ENTER();
	if (!m)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	leave(m);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, memory *m, unsigned long long flags) {
	ENTER();
	if (!m || offset || flags || !bytes || bytes != m->bytes || at % PAGE_BYTES)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	int ok = *around(&reservations, at, bytes) && !overlaps(at, bytes);
	if (ok) {
		m->users++;
		add(&mappings, (range){.at = at, .bytes = bytes, .memory = m});
	}
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const access *a, size_t count) {
	ENTER();
	if (!a || count != 1 || a->where.type != DEVICE || a->flags != READ_WRITE || !device_valid(a->where.id))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	int ok = covered(at, bytes, 1, 0) && !mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE);
	for (range *m = mappings; ok && m; m = m->next)
		if (m->at >= at && m->at < at + bytes)
			m->open = 1;
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
	ENTER();
	pthread_mutex_lock(&lock);
	int ok = bytes && covered(at, bytes, 1, 0);
	if (ok) {
		madvise((void *)(uintptr_t)at, bytes, MADV_DONTNEED);
		mprotect((void *)(uintptr_t)at, bytes, PROT_NONE);
	}
	for (range **m = &mappings; ok && *m;) {
		if ((*m)->at < at || (*m)->at >= at + bytes) {
			m = &(*m)->next;
			continue;
		}
		leave((*m)->memory);
		drop(m);
	}
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}
