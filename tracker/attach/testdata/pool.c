// Libpool is a library with an allocator of its own: it takes one segment from the driver and
// hands out pieces. The address is written where an argument points:
//
//	--functions 'libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)'
//
// With -DSTUBS its two functions begin as those of NVIDIA's driver do on amd64: they go on where a table says, unless it has shut down.
#include <stdlib.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, size_t);

enum { PIECES = 1024, PIECE = 4096 };

struct pool {
	unsigned long long segment;
	char used[PIECES];
};

#ifdef STUBS
#define STUB(name, does) \
	__asm__(".globl " #name "\n.type " #name ",@function\n" #name ": cmpl $0x321cba00, stub_state(%rip)\n" \
		"je 1f\njmp *" #does "(%rip)\n1: mov $4, %eax\nret\n.size " #name ", . - " #name "\n")
STUB(pool_alloc, stub_alloc);
STUB(pool_free, stub_free);
#define pool_alloc real_alloc
#define pool_free real_free
#define HIDDEN __attribute__((visibility("hidden")))
struct pool;
static int pool_alloc(struct pool *, size_t, void **);
static void pool_free(struct pool *, void *);
HIDDEN int stub_state = 1;
HIDDEN void *stub_alloc = (void *)pool_alloc, *stub_free = (void *)pool_free;
#define STATIC static
#else
#define STATIC
#endif

struct pool *pool_new(void) {
	struct pool *p = calloc(1, sizeof *p);
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&p->segment, PIECES * PIECE))
		abort();
	return p;
}

// pool_alloc gives 1 if there is no room, or the size is none.
STATIC int pool_alloc(struct pool *p, size_t bytes, void **out) {
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

STATIC void pool_free(struct pool *p, void *at) {
	if (at)
		p->used[((size_t)at - p->segment) / PIECE] = 0;
}
