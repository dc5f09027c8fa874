// With -DNAME and -DROOM a library that allocates below a frame of that size. Else a program that opens one library after another, as its
// arguments name them, lets it allocate, prints where it is, waits for a line and closes it. After "+" it maps the code of the next library over
// that of the one before, closes nothing, and opens a library of the system.
#include <string.h>

#ifdef NAME
int cuMemAlloc_v2(unsigned long long *, unsigned long);

static volatile int sink;

__attribute__((noinline, visibility("hidden"))) void NAME(int n) {
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
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int);

// over maps the same part of another file over the code at an address.
static void over(void (*at)(int), const char *path) {
	unsigned long from, to, offset;
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx r-xp %lx", &from, &to, &offset) == 3 && from <= (unsigned long)at && (unsigned long)at < to) {
			int file = open(path, O_RDONLY);
			if (mmap((void *)from, to - from, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, (off_t)offset) == MAP_FAILED)
				exit(5);
			close(file);
		}
	fclose(maps);
}

int main(int argc, char **argv) {
	void *context;
	void (*run)(int) = NULL;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '-') { // a pause
			puts("closed");
			fflush(stdout);
			getchar();
			continue;
		}
		if (argv[i][0] == '+') {
			over(run, argv[++i]);
			dlopen("libm.so.6", RTLD_NOW);
			run(i);
			printf("%p\n", (void *)run);
			fflush(stdout);
			getchar();
			continue;
		}
		void *library = dlopen(argv[i], RTLD_NOW);
		run = library ? (void (*)(int))dlsym(library, "run") : NULL;
		if (!run)
			return 4;
		run(i);
		printf("%p\n", (void *)run);
		fflush(stdout);
		getchar();
		if (i + 1 < argc && argv[i + 1][0] == '+')
			continue;
		dlclose(library);
	}
	return 0;
}
#endif
