// Functions by their names, as NVIDIA's runtime library finds them.
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

enum { NOT_FOUND = 500, PER_THREAD_DEFAULT_STREAM = 2 };

// find looks in this library only, which may have been loaded by dlopen.
static void *find(const char *name) {
	Dl_info self;
	void *lib = dladdr((void *)find, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	void *function = lib ? dlsym(lib, name) : NULL;
	if (lib)
		dlclose(lib);
	return function;
}

// The newest version is given, whatever version is asked for.
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
	char newer[128];
	(void)version;
	if (!symbol || !function)
		return INVALID_VALUE;
	snprintf(newer, sizeof newer, "%s_ptsz", symbol);
	*function = flags & PER_THREAD_DEFAULT_STREAM ? find(newer) : NULL;
	snprintf(newer, sizeof newer, "%s_v2", symbol);
	if (!*function)
		*function = find(newer);
	if (!*function)
		*function = find(symbol);
	if (status)
		*status = *function ? 0 : 1;
	return *function ? SUCCESS : NOT_FOUND;
}
