// Stand-ins of libraries that hand out memory, with the signatures of their headers.
#include <stdint.h>
#include <stdlib.h>

static uintptr_t next = 1 << 20;

static void *take(void) { return (void *)(next += 4096); }

void *ggml_backend_buft_alloc_buffer(void *type, size_t size) { return type && size ? take() : NULL; }
void ggml_backend_buffer_free(void *buffer) { (void)buffer; }
int hipMalloc(void **p, size_t size) { return (*p = take()) && size ? 0 : 1; }
int hipFree(void *p) { return !p; }
int zeMemAllocDevice(void *context, void *how, size_t size, size_t alignment, void *device, void **p) {
	(void)context, (void)how, (void)alignment, (void)device;
	return (*p = take()) && size ? 0 : 1;
}
int zeMemFree(void *context, void *p) { return context && !p; }
int cuvsRMMAlloc(uintptr_t resources, void **p, size_t size) { return (*p = take()) && resources && size ? 0 : 1; }
int cuvsRMMFree(uintptr_t resources, void *p, size_t size) { return !resources || !p || !size; }
int icicle_malloc(void **p, size_t size) { return (*p = take()) && size ? 0 : 1; }
int icicle_free(void *p) { return !p; }

// c10::alloc_cpu and c10::free_cpu.
void *_ZN3c109alloc_cpuEm(size_t size) { return size ? take() : NULL; }
void _ZN3c108free_cpuEPv(void *p) { (void)p; }
