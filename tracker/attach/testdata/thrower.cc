// An allocator in C++ that throws where it has no memory, in several ways: through functions, from a part that the compiler moved away,
// and with and without something to destroy on the way. After each exception the program goes on to allocate, from deeper functions too.
// With "tail" the allocator may leave by a jump to a function whose address is computed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

struct Pool {
	void *take(std::size_t n);
	void *taken(std::size_t n);
	void give(void *p);
};

static void *(*volatile hook)(std::size_t) = std::malloc;

__attribute__((noinline)) static void refuse(std::size_t n) {
	std::string text = "no " + std::to_string(n) + " bytes";
	if (n % 3)
		throw std::bad_alloc();
	throw text;
}

__attribute__((noinline)) void *Pool::take(std::size_t n) {
	std::string name = std::to_string(n);
	if (n > 1000)
		refuse(n);
	void *p = std::malloc(n);
	return name.empty() ? nullptr : p;
}

__attribute__((noinline)) void *Pool::taken(std::size_t n) {
	if (n > 1000)
		refuse(n);
	return hook(n);
}

__attribute__((noinline)) void Pool::give(void *p) { std::free(p); }

static Pool pool;

__attribute__((noinline)) static void *deep(std::size_t n, int levels) {
	volatile char room[64] = {};
	void *p = levels ? deep(n, levels - 1) : pool.take(n + room[0]);
	room[1] = 1;
	return p;
}

int main(int argc, char **argv) {
	for (std::size_t n = 951; n < 1051; n++) { // half of them are refused
		void *p = nullptr;
		try {
			p = argc > 1 && !std::strcmp(argv[1], "tail") ? pool.taken(n) : n % 5 ? pool.take(n) : deep(n, n % 7);
		} catch (std::string &) {
			p = deep(n - 900, 9);
		} catch (std::bad_alloc &) {
			continue;
		}
		if (n % 2)
			pool.give(p);
		else
			std::printf("live %llx %zu\n", reinterpret_cast<unsigned long long>(p), n > 1000 ? n - 900 : n);
	}
	std::puts("done");
	std::fflush(stdout);
	while (std::getchar() != EOF)
		;
}
