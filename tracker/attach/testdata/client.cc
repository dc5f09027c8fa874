// Allocates in C++, from several threads. At each line of its input it does some more, and
// prints what the emulated driver has live.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

extern "C" int cuInit(unsigned);
extern "C" int cuCtxCreate_v2(void **, unsigned, int);
extern "C" int cuCtxSetCurrent(void *);
extern "C" int cuMemAlloc_v2(unsigned long long *, size_t);
extern "C" int cuMemFree_v2(unsigned long long);
extern "C" size_t gpuemu_live(uint64_t *, uint64_t *, size_t);

namespace model {

class Weights {
public:
	explicit Weights(size_t bytes) { load(bytes); }
	~Weights() { cuMemFree_v2(at); }
	Weights(const Weights &) = delete;

private:
	__attribute__((noinline)) void load(size_t bytes) {
		if (cuMemAlloc_v2(&at, bytes))
			throw std::bad_alloc();
	}
	unsigned long long at = 0;
};

} // namespace model

static void *context;

static void work(std::vector<std::unique_ptr<model::Weights>> &mine, unsigned seed) {
	cuCtxSetCurrent(context);
	std::mt19937 r(seed);
	for (int i = 0; i < 100; i++) {
		try {
			mine[r() % mine.size()] = r() % 3 ? std::make_unique<model::Weights>(1 + r() % 100000) : nullptr;
			if (i % 50 == 0)
				model::Weights((size_t)1 << 50); // there is not so much
		} catch (const std::bad_alloc &) {
		}
	}
}

int main() {
	static uint64_t at[1 << 12], bytes[1 << 12];
	std::vector<std::unique_ptr<model::Weights>> all[4];
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
		return 3;
	model::Weights big(64 << 20);
	for (auto &mine : all)
		mine.resize(50);
	for (unsigned round = 1;; round++) {
		std::vector<std::thread> threads;
		for (unsigned i = 0; i < 4; i++)
			threads.emplace_back(work, std::ref(all[i]), 10 * round + i);
		for (auto &t : threads)
			t.join();
		size_t n = gpuemu_live(at, bytes, 1 << 12);
		for (size_t i = 0; i < n; i++)
			printf("live %llx %llu\n", (unsigned long long)at[i], (unsigned long long)bytes[i]);
		printf("done\n");
		fflush(stdout);
		int c;
		while ((c = getchar()) != '\n')
			if (c == EOF)
				return 7;
	}
}
