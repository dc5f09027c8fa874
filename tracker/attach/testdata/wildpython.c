// Has the functions by which an interpreter of Python is found, and frames that are damaged in each way: calls are seen all the same.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long word;

word _PyRuntime[128];
static void *thread;

const char *Py_GetVersion(void) { return getenv("PYTHON_VERSION"); }
void *PyGILState_GetThisThreadState(void) { return thread; }

int main(void) {
	memcpy(_PyRuntime, "xdebugpy", 8);
	for (int i = 1; i < 128; i++)
		_PyRuntime[i] = 0x400000000000ull + (word)i * 8;
	unsigned major = 0, minor = 0;
	sscanf(Py_GetVersion(), "%u.%u", &major, &minor);
	_PyRuntime[1] = major << 24 | minor << 16;
	_PyRuntime[minor == 13 ? 23 : 26] = 0; // the frame of a thread is where it may be read, and what is in it is nowhere
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*create)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
	int (*alloc)(word *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
	if (init(0) || create(&context, 0, 0))
		return 1;
	static word loop[64], junk[64];
	for (int i = 0; i < 64; i++) {
		loop[i] = (word)loop;
		junk[i] = (word)i * 0x0101010101010101ull;
	}
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + 4096, 4096);
	void *threads[] = {NULL, (void *)1, (void *)~0ull, pages + 4096, pages + 4092, pages + 4096 - 24, loop, junk, (void *)main};
	for (size_t i = 0; i < 2 * sizeof threads / sizeof *threads; i++) { // each again, when what it leads to is known
		word p;
		thread = threads[i / 2];
		if (alloc(&p, 64))
			return 1;
	}
	puts("done");
	fflush(stdout);
	char c;
	return read(0, &c, 1) < 0;
}
