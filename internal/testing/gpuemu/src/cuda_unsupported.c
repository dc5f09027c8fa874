// The other functions that gorgonia.org/cu links: each says "not supported",
// and once on stderr that it was called, so that a gap is seen at once.
#include "driver.h"

#include <stdio.h>

static CUresult unsupported(const char *function, int *told) {
	if (!__atomic_exchange_n(told, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "gpuemu: %s is not emulated\n", function);
	return NOT_SUPPORTED;
}

#define UNSUPPORTED(function)                          \
	EXPORT CUresult function(void) {               \
		static int told;                       \
		return unsupported(__func__, &told);   \
	}

#include "unsupported.inc"
