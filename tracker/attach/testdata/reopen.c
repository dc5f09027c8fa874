// With -DNAME and -DROOM a library that allocates below a frame of that size. Else a program that opens one library after another, as its
// arguments name them, lets it allocate, prints where it is, waits for a line and closes it.
#include <string.h>

#ifdef NAME
int cuMemAlloc_v2(unsigned long long *, unsigned long);

static volatile int sink;

__attribute__((noinline)) void NAME(int n) {
	char room[ROOM];
	unsigned long long p;
	memset(room, n, sizeof room);
	sink += cuMemAlloc_v2(&p, 1 << 20);
	sink += room[sink & 1023];
}

void run(int n) {
	NAME(n);
	sink++;
}
#else
#include <dlfcn.h>
#include <stdio.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int);

int main(int argc, char **argv) {
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '-') { // a pause
			puts("closed");
			fflush(stdout);
			getchar();
			continue;
		}
		void *library = dlopen(argv[i], RTLD_NOW);
		void (*run)(int) = library ? (void (*)(int))dlsym(library, "run") : NULL;
		if (!run)
			return 4;
		run(i);
		printf("%p\n", (void *)run);
		fflush(stdout);
		getchar();
		dlclose(library);
	}
	return 0;
}
#endif
