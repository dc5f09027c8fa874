// Uses the CUDA driver as far as its argument says: nothing, load, lookup, init, or context.
// Then it prints "done", and waits for the end of its input.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *function(void *lib, const char *name) {
	void *f = lib ? dlsym(lib, name) : NULL;
	if (!f) {
		fprintf(stderr, "no %s: %s\n", name, dlerror());
		exit(1);
	}
	return f;
}

int main(int argc, char **argv) {
	static const char *const steps[] = {"nothing", "load", "lookup", "init", "context"};
	int n = 0;
	while (argc < 2 || strcmp(argv[1], steps[n]))
		if (argc < 2 || ++n == 5)
			return 1;
	void *lib = n > 0 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL, *found = NULL, *context = NULL;
	if (n == 2)
		((int (*)(const char *, void **, int, uint64_t, int *))function(lib, "cuGetProcAddress_v2"))("cuInit", &found, 12000, 0, NULL);
	if (n >= 3)
		((int (*)(unsigned))function(lib, "cuInit"))(0);
	if (n == 4)
		((int (*)(void **, int))function(lib, "cuDevicePrimaryCtxRetain"))(&context, 0);
	if (argc > 2)
		return 7;
	puts("done");
	fflush(stdout);
	return getchar() == EOF ? 7 : 1;
}
