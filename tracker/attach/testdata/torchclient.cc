// Allocates tensors' blocks by the stand-in of PyTorch's allocator. It waits for a line, allocates, prints what is live and waits for the end.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

extern "C" void *torch_empty(size_t size, int device, void *stream);
extern "C" void *torch_empty_too(size_t size, int device, void *stream);
extern "C" void torch_delete(void *at);

static std::map<void *, size_t> live;

__attribute__((noinline)) static void layer(int i) {
	size_t size = 512 * (i % 100 + 1);
	int device = i / 10 % 2;
	void *stream = (void *)(uintptr_t)(16 * (i / 10 % 4));
	void *at = i % 3 ? torch_empty(size, device, stream) : torch_empty_too(size, device, stream);
	if (i % 10) {
		torch_delete(at);
	} else {
		live[at] = size;
	}
}

int main(int argc, char **argv) {
	void *before = torch_empty(512, 0, nullptr);
	if (argc > 1) puts("ready"), fflush(stdout), getchar();
	if (argc > 1) torch_delete(before);
	else live[before] = 512;
	std::vector<std::thread> others;
	for (int t = 0; t < 4; t++)
		others.emplace_back([] { for (int i = 0; i < 500; i++) torch_delete(torch_empty(512, 0, nullptr)); });
	for (int i = 0; i < 1000; i++) layer(i);
	for (auto &t : others) t.join();
	for (auto &it : live) printf("live %zx %zu\n", (size_t)it.first, it.second);
	puts("done");
	fflush(stdout);
	while (getchar() != EOF) {
	}
}
