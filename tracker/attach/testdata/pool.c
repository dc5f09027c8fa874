// Libpool is a library with an allocator of its own: it takes one segment from the driver and
// hands out pieces. The address is written where an argument points:
//
//	--functions 'libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)'
#include <stdlib.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, size_t);

enum { PIECES = 1024, PIECE = 4096 };

struct pool {
	unsigned long long segment;
	char used[PIECES];
};

struct pool *pool_new(void) {
	struct pool *p = calloc(1, sizeof *p);
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&p->segment, PIECES * PIECE))
		abort();
	return p;
}

// pool_alloc gives 1 if there is no room, or the size is none.
int pool_alloc(struct pool *p, size_t bytes, void **out) {
	if (!bytes || bytes > PIECE)
		return 1;
	for (int i = 0; i < PIECES; i++)
		if (!p->used[i]) {
			p->used[i] = 1;
			*out = (void *)(p->segment + (size_t)i * PIECE);
			return 0;
		}
	return 1;
}

void pool_free(struct pool *p, void *at) {
	if (at)
		p->used[((size_t)at - p->segment) / PIECE] = 0;
}
