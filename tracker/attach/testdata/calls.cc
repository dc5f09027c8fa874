// Allocates 1000 times on random call stacks: virtual and template functions, lambdas, a sort, handlers of exceptions, destructors,
// threads. The sizes are all different, and the same in each run.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

extern "C" int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(unsigned long long *, size_t);

namespace net {

struct Run {
	unsigned seed;
	size_t size;
	int next(int n) { return rand_r(&seed) % n; }
	int step(int depth);
	int allocate();
};

struct Layer {
	virtual ~Layer() = default;
	virtual int forward(Run &run, int depth) = 0;
};

template <int N> struct Dense : Layer {
	int forward(Run &run, int depth) override {
		volatile char room[N];
		room[depth % N] = 1;
		return run.step(depth) + room[0];
	}
};

struct Norm : Layer {
	std::unique_ptr<Layer> of = std::make_unique<Dense<64>>();
	int forward(Run &run, int depth) override { return of->forward(run, depth) + 1; }
};

struct AtEnd {
	Run &run;
	int depth;
	~AtEnd() { run.step(depth); }
};

__attribute__((noinline)) int Run::allocate() {
	unsigned long long p;
	if (cuMemAlloc_v2(&p, size += 256)) exit(4);
	return int(p & 1);
}

template <class F> __attribute__((noinline)) static int apply(F &&f) { return f() + 1; }

__attribute__((noinline)) static void fails(int depth) {
	if (depth >= 0) throw std::runtime_error("as it should");
}

__attribute__((noinline)) int Run::step(int depth) {
	if (depth-- == 0) return allocate() + 1;
	switch (next(7)) {
	case 0: return std::unique_ptr<Layer>(new Norm)->forward(*this, depth) + 1;
	case 1: return std::unique_ptr<Layer>(new Dense<700>)->forward(*this, depth) + 1;
	case 2: return apply([=, this] { return step(depth) * 3; });
	case 3: return std::function<int()>([=, this] { return step(depth) + 2; })() + 1;
	case 4: {
		std::vector<int> numbers{3, 1, 2};
		bool once = true;
		std::sort(numbers.begin(), numbers.end(), [&](int x, int y) {
			if (std::exchange(once, false)) step(depth);
			return x < y;
		});
		return numbers[0];
	}
	case 5:
		try {
			fails(depth);
		} catch (std::exception &) {
			return step(depth) + 1;
		}
		return 0;
	default: AtEnd{*this, depth}; return next(2);
	}
}

static void work(unsigned seed, size_t first) {
	Run run{seed, first};
	for (int i = 0; i < 500; i++) run.step(1 + run.next(12));
}

} // namespace net

int main() {
	raise(SIGURG);  // see callers.py
	void *context;
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) return 1;
	net::work(1, 0);
	std::thread([=] { cuCtxSetCurrent(context), net::work(2, 500 * 256); }).join();
	puts("done");
	fflush(stdout);
	getchar();
}
