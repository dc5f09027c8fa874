// Allocates 20 times by each function of recipes.c, and frees all but two; and by ggml's as llama.cpp and whisper.cpp do,
// for weights, KV, compute and output buffers. Prints "done", and waits for the end of its input.
#include <cstddef>
#include <cstdint>
#include <cstdio>

extern "C" {
void *ggml_backend_buft_alloc_buffer(void *, size_t);
void ggml_backend_buffer_free(void *);
int hipMalloc(void **, size_t), hipFree(void *);
int zeMemAllocDevice(void *, void *, size_t, size_t, void *, void **), zeMemFree(void *, void *);
int cuvsRMMAlloc(uintptr_t, void **, size_t), cuvsRMMFree(uintptr_t, void *, size_t);
int icicle_malloc(void **, size_t), icicle_free(void *);
}

namespace c10 {
void *alloc_cpu(size_t);
void free_cpu(void *);
}

static volatile int sink;
static int sink_of;
#define OUTSIDE __attribute__((noinline))

OUTSIDE static void *buffer(size_t n) {
	void *p = ggml_backend_buft_alloc_buffer(&sink_of, n);
	sink = sink + 1;
	return p;
}

struct llama_model_base {
	OUTSIDE void load_tensors() { buffer(64 << 20); sink = sink + 1; }
};

struct llama_kv_cache {
	OUTSIDE llama_kv_cache() { buffer(32 << 20); sink = sink + 1; }
};

struct llama_context {
	OUTSIDE llama_context() {}
	OUTSIDE void output_reserve() { buffer(8 << 20); sink = sink + 1; }
};

OUTSIDE static void whisper_model_load() { buffer(64 << 20); sink = sink + 1; }
OUTSIDE static void whisper_kv_cache_init() { buffer(32 << 20); sink = sink + 1; }

extern "C" OUTSIDE void ggml_backend_sched_reserve() { buffer(16 << 20); sink = sink + 1; }
extern "C" OUTSIDE void ggml_gallocr_reserve_n() { buffer(16 << 20); sink = sink + 1; }

int main() {
	int context = 0;
	for (int i = 0; i < 20; i++) {
		void *p;
		p = buffer(1 << 20);
		if (i > 1) ggml_backend_buffer_free(p);
		hipMalloc(&p, 2 << 20);
		if (i > 1) hipFree(p);
		zeMemAllocDevice(&context, nullptr, 3 << 20, 64, nullptr, &p);
		if (i > 1) zeMemFree(&context, p);
		cuvsRMMAlloc(7, &p, 4 << 20);
		if (i > 1) cuvsRMMFree(7, p, 4 << 20);
		icicle_malloc(&p, 5 << 20);
		if (i > 1) icicle_free(p);
		p = c10::alloc_cpu(6 << 20);
		if (i > 1) c10::free_cpu(p);
	}
	llama_model_base().load_tensors();
	llama_kv_cache();
	ggml_gallocr_reserve_n();
	ggml_backend_sched_reserve();
	llama_context().output_reserve();
	whisper_model_load();
	whisper_kv_cache_init();
	puts("done");
	fflush(stdout);
	return getchar() == 0;
}
