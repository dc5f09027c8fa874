// Executes itself N times. Each program allocates as many buffers as are left to execute, and the last one a single buffer: then it prints
// "done", and waits for the end of its input.
//
//	execs N THREADS MICROSECONDS
//
// THREADS allocate and free meanwhile, and one of them executes the next program. Each program waits up to MICROSECONDS before it does.
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr;
int cuInit(unsigned);
int cuCtxSetCurrent(void *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);

static char **arguments;
static int links, threads, pause_us;
static void *context;

static void next(void) {
	char left[16];
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (pause_us)
		usleep((unsigned)(now.tv_nsec / 1000 % pause_us));
	snprintf(left, sizeof left, "%d", links - 1);
	execl(arguments[0], arguments[0], left, arguments[2], arguments[3], (char *)NULL);
	perror("exec");
	exit(1);
}

static void *work(void *executes) {
	cuCtxSetCurrent(context);
	for (int i = 0; i < (executes ? 20 : 500); i++) { // the ring has room for them, if the watcher does not read
		ptr p;
		if (!cuMemAlloc_v2(&p, 1 << 10))
			cuMemFree_v2(p);
	}
	if (executes)
		next();
	pause();
	return NULL;
}

int main(int argc, char **argv) {
	if (argc != 4)
		return 1;
	arguments = argv;
	links = atoi(argv[1]), threads = atoi(argv[2]), pause_us = atoi(argv[3]);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	for (int i = 0; i < links; i++) {
		ptr p;
		if (cuMemAlloc_v2(&p, 1 << 20))
			return 1;
	}
	for (int i = 0; i < threads && links > 1; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, work, i + 1 < threads ? NULL : &links))
			return 1;
	}
	if (links > 1 && threads)
		pause();
	if (links > 1)
		next();
	puts("done");
	fflush(stdout);
	return getchar() == EOF ? 7 : 1;
}
