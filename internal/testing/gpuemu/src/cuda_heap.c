// Device memory: 2 MiB pages of a reserved address range, backed by host pages
// as they are touched. What is larger than half a page has pages of its own;
// smaller allocations of a context share pages, 512 bytes at the least. The
// lowest address that fits is taken, so freed addresses come back soon.
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	GRAIN = 512,
	GRAINS = (2 << 20) / GRAIN,
	SMALL = 1 << 20,
	SPACE = 4, // addresses to each byte of memory: room for holes
	PITCH = 512,
};

typedef struct {
	unsigned used;         // grains
	uint16_t run[GRAINS];  // at an allocation's first grain: its length
	uint32_t bytes[GRAINS]; // and what was asked for
} slab;

typedef struct {
	enum { FREE, HEAD, BODY, SHARED } use;
	int managed, resident;
	size_t bytes, pages; // of the allocation, at its head
	CUcontext owner;
	slab *slab;
} page;

typedef struct {
	char *base;
	size_t pages, top; // top: no page at or above it was ever used
	page *page;
} heap;

// A block is where an address was found: a whole allocation.
typedef struct {
	heap *heap;
	int device;
	page *page;
	size_t grain; // in a shared page
	CUdeviceptr start;
	size_t bytes;
} block;

static heap heaps[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

CUresult heap_account(int device, int64_t used, int64_t requested, int buffers, int contexts) {
	uint64_t memory = state_memory(device);
	usage *u = &state_self()->dev[device];
	CUresult r = SUCCESS;
	state_lock();
	if (used > 0 && state_used(device) + (uint64_t)used > memory) {
		state_reap();
		if (state_used(device) + (uint64_t)used > memory)
			r = OUT_OF_MEMORY;
	}
	if (!r) {
		u->used += (uint64_t)used;
		u->requested += (uint64_t)requested;
		u->buffers += (uint32_t)buffers;
		u->contexts += (uint32_t)contexts;
	}
	state_unlock();
	return r;
}

void heap_account_events(int n) {
	state_lock();
	state_self()->events += (uint32_t)n;
	state_unlock();
}

uint64_t heap_free(int device) {
	state_lock();
	state_reap();
	uint64_t used = state_used(device);
	state_unlock();
	uint64_t memory = state_memory(device);
	return used < memory ? memory - used : 0;
}

// heap_of reserves the device's addresses the first time. Hold the lock.
static heap *heap_of(int device) {
	heap *h = &heaps[device];
	if (h->base)
		return h;
	size_t pages = SPACE * (state_memory(device) / PAGE_BYTES + 1);
	size_t length = (pages + 1) * PAGE_BYTES;
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) {
		perror("gpuemu: device addresses");
		return NULL;
	}
	madvise(at, length, MADV_DONTDUMP);
	h->page = calloc(pages, sizeof *h->page);
	h->pages = pages;
	h->base = (char *)(((uintptr_t)at + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
	return h;
}

static char *address(heap *h, page *p) { return h->base + (size_t)(p - h->page) * PAGE_BYTES; }

// take_pages finds the lowest n free pages in a row. Hold the lock.
static page *take_pages(heap *h, size_t n, CUcontext owner) {
	size_t run = 0;
	for (size_t i = 0; i < h->pages; i++) {
		run = h->page[i].use == FREE ? run + 1 : 0;
		if (run < n)
			continue;
		page *head = &h->page[i + 1 - n];
		for (page *p = head; p <= &h->page[i]; p++)
			*p = (page){.use = BODY};
		*head = (page){.use = HEAD, .pages = n, .owner = owner};
		if (h->top < i + 1)
			h->top = i + 1;
		return head;
	}
	return NULL;
}

static void give_pages(heap *h, page *head) {
	size_t n = head->pages;
	madvise(address(h, head), n * PAGE_BYTES, MADV_DONTNEED);
	memset(head, 0, n * sizeof *head);
}

// take_grains finds n free grains in a row of a shared page, or GRAINS. Hold the lock.
static size_t take_grains(slab *s, size_t n) {
	if (s->used + n > GRAINS)
		return GRAINS;
	size_t run = 0;
	for (size_t g = 0; g < GRAINS;) {
		if (s->run[g]) {
			g += s->run[g];
			run = 0;
			continue;
		}
		g++;
		if (++run == n)
			return g - n;
	}
	return GRAINS;
}

static CUresult alloc_small(heap *h, CUcontext ctx, size_t bytes, CUdeviceptr *out) {
	size_t n = (bytes + GRAIN - 1) / GRAIN, grain = GRAINS;
	page *p = NULL;
	for (size_t i = 0; i < h->top && grain == GRAINS; i++) {
		p = &h->page[i];
		if (p->use == SHARED && p->owner == ctx)
			grain = take_grains(p->slab, n);
	}
	int fresh = grain == GRAINS;
	if (fresh && !(p = take_pages(h, 1, ctx)))
		return OUT_OF_MEMORY;
	CUresult r = heap_account(ctx->device, fresh ? (int64_t)PAGE_BYTES : 0, (int64_t)bytes, 1, 0);
	if (r) {
		if (fresh)
			give_pages(h, p);
		return r;
	}
	if (fresh) {
		p->use = SHARED;
		p->slab = calloc(1, sizeof *p->slab);
		grain = 0;
	}
	p->slab->run[grain] = (uint16_t)n;
	p->slab->bytes[grain] = (uint32_t)bytes;
	p->slab->used += (unsigned)n;
	*out = (CUdeviceptr)(uintptr_t)address(h, p) + grain * GRAIN;
	return SUCCESS;
}

// Managed memory takes none of the device until the device touches it.
static CUresult alloc_large(heap *h, int device, CUcontext owner, size_t bytes, int managed, CUdeviceptr *out) {
	size_t n = (bytes - 1) / PAGE_BYTES + 1;
	if (n > h->pages)
		return OUT_OF_MEMORY;
	page *head = take_pages(h, n, owner);
	if (!head)
		return OUT_OF_MEMORY;
	CUresult r = heap_account(device, managed ? 0 : (int64_t)(n * PAGE_BYTES), (int64_t)bytes, 1, 0);
	if (r) {
		give_pages(h, head);
		return r;
	}
	head->bytes = bytes;
	head->managed = managed;
	*out = (CUdeviceptr)(uintptr_t)address(h, head);
	return SUCCESS;
}

static CUresult alloc(CUcontext ctx, size_t bytes, int managed, CUdeviceptr *out) {
	if (!out || !bytes)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	heap *h = heap_of(ctx->device);
	CUresult r = OUT_OF_MEMORY;
	if (h && (bytes > SMALL || managed))
		r = alloc_large(h, ctx->device, ctx, bytes, managed, out);
	else if (h)
		r = alloc_small(h, ctx, bytes, out);
	pthread_mutex_unlock(&lock);
	return r;
}

static page *head_of(heap *h, page *p) {
	while (p->use == BODY && p > h->page)
		p--;
	return p;
}

// find looks up the allocation that an address lies in. Hold the lock.
static int find(CUdeviceptr at, block *b) {
	for (int d = 0; d < MAX_DEVICES; d++) {
		heap *h = &heaps[d];
		CUdeviceptr base = (CUdeviceptr)(uintptr_t)h->base;
		if (!h->base || at < base || at >= base + h->pages * PAGE_BYTES)
			continue;
		page *p = head_of(h, &h->page[(at - base) / PAGE_BYTES]);
		*b = (block){.heap = h, .device = d, .page = p, .start = (CUdeviceptr)(uintptr_t)address(h, p), .bytes = p->bytes};
		if (p->use == HEAD)
			return at < b->start + b->bytes;
		if (p->use != SHARED)
			return 0;
		size_t grain = (at - b->start) / GRAIN;
		for (size_t g = 0; g <= grain; g += p->slab->run[g] ? p->slab->run[g] : 1) {
			if (grain >= g + p->slab->run[g])
				continue;
			b->grain = g;
			b->start += g * GRAIN;
			b->bytes = p->slab->bytes[g];
			return at < b->start + b->bytes;
		}
	}
	return 0;
}

static int64_t resident(page *head) {
	if (!head->managed)
		return (int64_t)(head->pages * PAGE_BYTES);
	int64_t bytes = 0;
	for (page *p = head; p < head + head->pages; p++)
		bytes += p->resident ? (int64_t)PAGE_BYTES : 0;
	return bytes;
}

// release frees one allocation. Hold the lock.
static void release(block *b) {
	int64_t pages = 0;
	page *p = b->page;
	if (p->use == SHARED) {
		p->slab->used -= p->slab->run[b->grain];
		p->slab->run[b->grain] = 0;
		if (!p->slab->used) {
			free(p->slab);
			p->pages = 1;
			pages = (int64_t)PAGE_BYTES;
			give_pages(b->heap, p);
		}
	} else {
		pages = resident(p);
		give_pages(b->heap, p);
	}
	heap_account(b->device, -pages, -(int64_t)b->bytes, -1, 0);
}

static void release_slab(int device, heap *h, page *p) {
	size_t at = (size_t)(p - h->page);
	for (size_t g = 0; g < GRAINS && h->page[at].use == SHARED; g++)
		if (p->slab->run[g])
			release(&(block){.heap = h, .device = device, .page = p, .grain = g, .bytes = p->slab->bytes[g]});
}

void heap_release(CUcontext ctx) {
	pthread_mutex_lock(&lock);
	heap *h = &heaps[ctx->device];
	for (size_t i = 0; i < h->top; i++) {
		page *p = &h->page[i];
		if (p->owner != ctx)
			continue;
		if (p->use == SHARED)
			release_slab(ctx->device, h, p);
		else if (p->use == HEAD)
			release(&(block){.heap = h, .device = ctx->device, .page = p, .bytes = p->bytes});
	}
	pthread_mutex_unlock(&lock);
}

CUresult heap_take(int device, size_t bytes, CUdeviceptr *out) {
	pthread_mutex_lock(&lock);
	heap *h = heap_of(device);
	CUresult r = h ? alloc_large(h, device, NULL, bytes, 0, out) : OUT_OF_MEMORY;
	pthread_mutex_unlock(&lock);
	return r;
}

static int head_at(CUdeviceptr at, block *b) {
	for (int d = 0; d < MAX_DEVICES; d++) {
		heap *h = &heaps[d];
		CUdeviceptr base = (CUdeviceptr)(uintptr_t)h->base;
		if (!h->base || at < base || at >= base + h->pages * PAGE_BYTES)
			continue;
		page *p = &h->page[(at - base) / PAGE_BYTES];
		*b = (block){.heap = h, .device = d, .page = p, .start = at, .bytes = p->bytes};
		return p->use == HEAD && (CUdeviceptr)(uintptr_t)address(h, p) == at;
	}
	return 0;
}

void heap_resize(CUdeviceptr at, size_t bytes) {
	block b;
	pthread_mutex_lock(&lock);
	if (head_at(at, &b)) {
		heap_account(b.device, 0, (int64_t)bytes - (int64_t)b.bytes, (bytes != 0) - (b.bytes != 0), 0);
		b.page->bytes = bytes;
	}
	pthread_mutex_unlock(&lock);
}

void heap_give(CUdeviceptr at) {
	block b;
	pthread_mutex_lock(&lock);
	if (head_at(at, &b)) {
		heap_account(b.device, -(int64_t)(b.page->pages * PAGE_BYTES), 0, 0, 0);
		give_pages(b.heap, b.page);
	}
	pthread_mutex_unlock(&lock);
}

int heap_owns(CUdeviceptr at) {
	for (heap *h = heaps; h < heaps + MAX_DEVICES; h++) {
		CUdeviceptr base = (CUdeviceptr)(uintptr_t)h->base;
		if (base && at >= base && at < base + h->pages * PAGE_BYTES)
			return 1;
	}
	return 0;
}

// touch moves managed pages to the device while it has room for them.
static void touch_pages(block *b, CUdeviceptr at, size_t n) {
	page *first = b->page + (at - b->start) / PAGE_BYTES;
	page *last = b->page + (at + n - 1 - b->start) / PAGE_BYTES;
	for (page *p = first; p <= last; p++)
		if (!p->resident && heap_account(b->device, (int64_t)PAGE_BYTES, 0, 0, 0) == SUCCESS)
			p->resident = 1;
}

int heap_range(CUdeviceptr at, size_t n, int touch) {
	block b;
	pthread_mutex_lock(&lock);
	int ok = find(at, &b) && n <= b.start + b.bytes - at;
	if (ok && n && touch && b.page->managed)
		touch_pages(&b, at, n);
	pthread_mutex_unlock(&lock);
	return ok;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
	ENTER_CONTEXT();
	return alloc(ctx, bytes, 0, out);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
	ENTER_CONTEXT();
	if (flags != 1 && flags != 2) // attached to all streams, or to the host
		return INVALID_VALUE;
	return alloc(ctx, bytes, 1, out);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
	ENTER_CONTEXT();
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return INVALID_VALUE;
	size_t row = (width + PITCH - 1) / PITCH * PITCH, bytes;
	if (row < width || __builtin_mul_overflow(row, height, &bytes))
		return OUT_OF_MEMORY;
	CUresult r = alloc(ctx, bytes, 0, out);
	if (!r)
		*pitch = row;
	return r;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
	ENTER_CONTEXT();
	if (!at)
		return SUCCESS;
	clock_drain(ctx);
	if (pool_free(ctx, at, NULL)) // cuMemFree takes these too
		return SUCCESS;
	block b;
	pthread_mutex_lock(&lock);
	int ok = find(at, &b) && b.start == at;
	if (ok)
		release(&b);
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
	ENTER_CONTEXT();
	if (!available || !total)
		return INVALID_VALUE;
	*total = state_memory(ctx->device);
	*available = heap_free(ctx->device);
	return SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
	ENTER_CONTEXT();
	block b;
	pthread_mutex_lock(&lock);
	int ok = find(at, &b);
	pthread_mutex_unlock(&lock);
	if (!ok)
		return INVALID_VALUE;
	if (base)
		*base = b.start;
	if (size)
		*size = b.bytes;
	return SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int key, CUdeviceptr at) {
	ENTER_CONTEXT();
	block b;
	pthread_mutex_lock(&lock);
	int ok = value && find(at, &b);
	pthread_mutex_unlock(&lock);
	if (!ok)
		return INVALID_VALUE;
	switch (key) {
	case 1: *(CUcontext *)value = b.page->owner; return SUCCESS;
	case 2: *(unsigned *)value = 2; return SUCCESS; // device memory
	case 3: *(CUdeviceptr *)value = at; return SUCCESS;
	case 8: *(unsigned *)value = (unsigned)b.page->managed; return SUCCESS;
	case 9: *(int *)value = b.device; return SUCCESS;
	}
	fprintf(stderr, "gpuemu: cuPointerGetAttribute: attribute %d is not emulated\n", key);
	return NOT_SUPPORTED;
}

// gpuemu_live is no driver's: it fills in this process's live allocations, for tests to
// compare with, and gives how many there are.
EXPORT size_t gpuemu_live(uint64_t *at, uint64_t *bytes, size_t room) {
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (heap *h = heaps; h < heaps + MAX_DEVICES; h++) {
		for (size_t i = 0; i < h->top; i++) {
			page *p = &h->page[i];
			for (size_t g = 0; g < (p->use == SHARED ? GRAINS : p->use == HEAD && p->bytes); g++) {
				if (p->use == SHARED && !p->slab->run[g])
					continue;
				if (n < room) {
					at[n] = (uint64_t)(uintptr_t)address(h, p) + g * GRAIN;
					bytes[n] = p->use == SHARED ? p->slab->bytes[g] : p->bytes;
				}
				n++;
			}
		}
	}
	pthread_mutex_unlock(&lock);
	return n;
}
