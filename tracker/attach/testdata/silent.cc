// Allocates by functions that return nothing, or a struct, as PyTorch's allocator does. What is in the register of results after them would be an
// error code. The argument says by which; half of the buffers are given back.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef __x86_64__
#define SCRIBBLE asm volatile("mov $1, %%eax" ::: "rax")
#else
#define SCRIBBLE
#endif

struct Data {
	void *data, *context;
	long device;
};

struct Pool {
	virtual void malloc(void **out, signed char device, std::size_t n, void *stream);
	virtual Data allocate(std::size_t n);
	virtual void free(void *p);
};

__attribute__((noinline)) void Pool::malloc(void **out, signed char, std::size_t n, void *) {
	*out = n > 1000 ? nullptr : std::malloc(n);
	SCRIBBLE;
}

__attribute__((noinline)) Data Pool::allocate(std::size_t n) {
	Data d{nullptr, nullptr, 0};
	malloc(&d.data, 0, n, nullptr);
	return d;
}

__attribute__((noinline)) void Pool::free(void *p) { std::free(p); }

template <class T> __attribute__((noinline)) void take(T **out, std::size_t n) {
	*out = n > 1000 ? nullptr : static_cast<T *>(std::malloc(n));
	SCRIBBLE;
}

extern "C" __attribute__((noinline)) void give(void *p) { std::free(p); }

int main(int, char **argv) {
	static Pool pool;
	for (std::size_t n = 951; n < 1051; n++) { // half of them are refused
		void *p = nullptr;
		if (!std::strcmp(argv[1], "allocate"))
			p = pool.allocate(n).data;
		else if (!std::strcmp(argv[1], "malloc"))
			pool.malloc(&p, 0, n, nullptr);
		else
			take(reinterpret_cast<char **>(&p), n);
		if (!p)
			continue;
		if (n % 2)
			std::strcmp(argv[1], "take") ? pool.free(p) : give(p);
		else
			std::printf("live %llx %zu\n", reinterpret_cast<unsigned long long>(p), n);
	}
	std::puts("done");
	std::fflush(stdout);
	while (std::getchar() != EOF)
		;
}
