// Libtold tells one function of all that it gives and takes back, as PyTorch does: a size below 0 is what was
// taken back. The device is a struct of two bytes.
//
//	--functions 'libtold.so:c10::reportMemoryUsageToProfiler(size=2,address=1,signed)'
#include <cstddef>
#include <cstdint>
#include <map>

extern "C" int cuInit(unsigned);
extern "C" int cuCtxCreate_v2(void **, unsigned, int);
extern "C" int cuMemAlloc_v2(unsigned long long *, size_t);

namespace c10 {

struct Device {
	int8_t type, index;
};

__attribute__((noinline)) void reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, Device) { asm volatile(""); }

} // namespace c10

static unsigned long long next, end;
static std::map<void *, size_t> sizes;

extern "C" void told_begin() {
	void *context;
	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuMemAlloc_v2(&next, 64 << 20);
	end = next + (64 << 20);
}

extern "C" void *told_take(size_t bytes) {
	if (bytes > 4096 || next + 4096 > end)
		return nullptr;
	void *at = (void *)next;
	next += 4096;
	sizes[at] = bytes;
	c10::reportMemoryUsageToProfiler(at, (int64_t)bytes, 0, 0, {1, 0});
	return at;
}

extern "C" void told_give(void *at) {
	if (!at)
		return;
	c10::reportMemoryUsageToProfiler(at, -(int64_t)sizes[at], 0, 0, {1, 0});
	sizes.erase(at);
}
