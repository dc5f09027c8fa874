// Takes pieces from one of the libraries beside it and gives some back, from several threads,
// then prints what it has and waits for the end of its input. With an argument it waits for a line before it begins.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef POOL
struct pool;
struct pool *pool_new(void);
int pool_alloc(struct pool *, size_t, void **);
void pool_free(struct pool *, void *);
static struct pool *pool;
static void begin(void) { pool = pool_new(); }
static void *take(size_t n) {
	void *at = NULL;
	return pool_alloc(pool, n, &at) ? NULL : at;
}
static void give(void *at) { pool_free(pool, at); }
#elif defined(ARENA)
void arena_begin(void), arena_give(void *), *arena_take(size_t);
#define begin arena_begin
#define take arena_take
#define give arena_give
#elif defined(TOLD)
void told_begin(void), told_give(void *), *told_take(size_t);
#define begin told_begin
#define take told_take
#define give told_give
#else
void slab_begin(void), slab_give(void *), *slab_take(size_t);
#define begin slab_begin
#define take slab_take
#define give slab_give
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	void *at;
	size_t bytes;
} have[256];

static void *worker(void *seed) {
	unsigned r = (unsigned)(size_t)seed;
	for (int i = 0; i < 1000; i++) {
		int n = rand_r(&r) % 256;
		pthread_mutex_lock(&lock);
		if (have[n].at) {
			give(have[n].at);
			have[n].at = NULL;
		} else {
			have[n].bytes = 1 + rand_r(&r) % 5000; // more than 4096 is refused
			have[n].at = take(have[n].bytes);
		}
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

int main(int argc, char **argv) {
	pthread_t t[4];
	(void)argv;
	if (argc > 1)
		getchar();
	begin();
	for (size_t i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, worker, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 256; i++)
		if (have[i].at)
			printf("live %llx %zu\n", (unsigned long long)have[i].at, have[i].bytes);
	printf("done\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
