// Allocates by libggml on random call stacks, in all the ways that it has, among them from its own callbacks and threads. It prints
// nothing but "done": the calls are counted where they are watched.
#include <alloca.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// By ggml.h, ggml-alloc.h, ggml-backend.h and ggml-cpu.h.
typedef struct ggml_context *context;
typedef struct ggml_tensor *tensor;
typedef struct ggml_cgraph *graph;
typedef struct ggml_backend *backend;
typedef struct ggml_backend_buffer_type *type;
typedef struct ggml_backend_buffer *buffer;
typedef struct ggml_gallocr *planner;
typedef struct ggml_backend_sched *scheduler;
typedef void (*operation)(tensor to, const struct ggml_tensor *from, int thread, int threads, void *data);
struct ggml_init_params { size_t size; void *memory; bool empty; };

context ggml_init(struct ggml_init_params);
void ggml_free(context);
tensor ggml_new_tensor_1d(context, int type, int64_t n);
tensor ggml_map_custom1(context, tensor, operation, int threads, void *data);
tensor ggml_add(context, tensor, tensor), ggml_sqr(context, tensor);
graph ggml_new_graph(context);
void ggml_build_forward_expand(graph, tensor);
backend ggml_backend_cpu_init(void);
void ggml_backend_cpu_set_n_threads(backend, int);
void ggml_backend_free(backend);
int ggml_backend_graph_compute(backend, graph);
type ggml_backend_cpu_buffer_type(void);
buffer ggml_backend_buft_alloc_buffer(type, size_t), ggml_backend_alloc_buffer(backend, size_t), ggml_backend_alloc_ctx_tensors(context, backend);
void ggml_backend_buffer_free(buffer);
planner ggml_gallocr_new(type);
bool ggml_gallocr_reserve(planner, graph), ggml_gallocr_alloc_graph(planner, graph);
void ggml_gallocr_free(planner);
scheduler ggml_backend_sched_new(backend *, type *, int n, size_t nodes, bool parallel, bool offload);
void ggml_backend_sched_free(scheduler);
void ggml_backend_sched_set_eval_callback(scheduler, bool (*)(tensor, bool ask, void *), void *data);
bool ggml_backend_sched_reserve(scheduler, graph), ggml_backend_sched_alloc_graph(scheduler, graph);
int ggml_backend_sched_graph_compute(scheduler, graph);

static volatile int sink;
static unsigned seed = 1;
static int next(int n) { return rand_r(&seed) % n; }
static void step(int depth);
static bool threaded; // only one at a time waits for its threads: they spin

static context begin(void) { return ggml_init((struct ggml_init_params){1 << 18, NULL, true}); }

static graph sum(context c, operation then, void *data) {
	tensor x = ggml_new_tensor_1d(c, 0, 64 + next(1000));
	tensor y = ggml_sqr(c, ggml_add(c, x, x));
	graph g = ggml_new_graph(c);
	ggml_build_forward_expand(g, then ? ggml_map_custom1(c, y, then, 2, data) : y);
	return g;
}

__attribute__((noinline)) static void direct(void) { ggml_backend_buffer_free(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64 + next(5000))); }

__attribute__((noinline)) static void ofBackend(backend b) { ggml_backend_buffer_free(ggml_backend_alloc_buffer(b, 64 + next(5000))); }

__attribute__((noinline)) static void tensors(backend b) {
	context c = begin();
	for (int n = 1 + next(4); n > 0; n--)
		ggml_new_tensor_1d(c, 0, 16 + next(1000));
	ggml_backend_buffer_free(ggml_backend_alloc_ctx_tensors(c, b));
	ggml_free(c);
}

__attribute__((noinline)) static void planned(bool reserved) {
	context c = begin();
	graph g = sum(c, NULL, NULL);
	planner p = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
	if (reserved)
		sink += ggml_gallocr_reserve(p, g);
	sink += ggml_gallocr_alloc_graph(p, g);
	ggml_gallocr_free(p);
	ggml_free(c);
}

__attribute__((noinline)) static void allocate(void) {
	backend b = ggml_backend_cpu_init();
	switch (next(5)) {
	case 0: direct(); break;
	case 1: ofBackend(b); break;
	case 2: tensors(b); break;
	case 3: planned(true); break;
	default: planned(false);
	}
	ggml_backend_free(b);
}

static bool between(tensor t, bool ask, void *data) {
	int *depth = data;
	if (!ask && *depth >= 0) {
		int its = *depth;
		*depth = -1;
		step(its);
	}
	return true;
}

__attribute__((noinline)) static void scheduled(int depth) {
	context c = begin();
	graph g = sum(c, NULL, NULL);
	backend b = ggml_backend_cpu_init();
	ggml_backend_cpu_set_n_threads(b, 1);
	scheduler s = ggml_backend_sched_new(&b, NULL, 1, 64, false, true);
	ggml_backend_sched_set_eval_callback(s, between, &depth);
	if (next(2))
		sink += ggml_backend_sched_reserve(s, g);
	sink += ggml_backend_sched_alloc_graph(s, g) + ggml_backend_sched_graph_compute(s, g);
	ggml_backend_sched_free(s);
	ggml_backend_free(b);
	ggml_free(c);
}

static void within(tensor to, const struct ggml_tensor *from, int thread, int threads, void *data) {
	if (thread == threads - 1)
		step(*(int *)data);
	sink++;
}

__attribute__((noinline)) static void computed(int depth) {
	context c = begin();
	graph g = sum(c, within, &depth);
	backend b = ggml_backend_cpu_init();
	bool threads = !threaded && next(2);
	threaded |= threads;
	ggml_backend_cpu_set_n_threads(b, threads ? 2 : 1);
	buffer held = ggml_backend_alloc_ctx_tensors(c, b);
	ggml_backend_graph_compute(b, g);
	threaded &= !threads;
	ggml_backend_buffer_free(held);
	ggml_backend_free(b);
	ggml_free(c);
}

__attribute__((noinline)) static void sized(int depth) {
	size_t n = 1 + (size_t)next(3000);
	char *p = alloca(n);
	memset(p, depth, n);
	step(depth);
	sink += p[n / 2];
}

__attribute__((noinline)) static void step(int depth) {
	if (depth == 0) {
		allocate();
		return;
	}
	switch (next(4)) {
	case 0: computed(depth - 1); break;
	case 1: scheduled(depth - 1); break;
	case 2: sized(depth - 1); break;
	default: step(depth - 1);
	}
	sink++;
}

int main(void) {
	raise(SIGURG); // see callers.py
	for (int i = 0; i < 500; i++)
		step(next(7));
	printf("done\n");
	fflush(stdout);
	getchar();
	return 0;
}
