// A stand-in of PyTorch's libc10_cuda.so: its allocator's functions, and with -DPROBES its static probes, which are no
// more than a nop and a note each. It takes segments of 2 MiB from the driver, all on the first device.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>

#ifdef PROBES
extern "C" {
__attribute__((section(".probes"), visibility("hidden"))) volatile unsigned short torch_sdt_semaphore_pytorch_malloc, torch_sdt_semaphore_pytorch_free;
}
#define NOTE(name, args) \
	"990: nop\n" \
	".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n" \
	".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n" \
	"993: .8byte 990b, _.stapsdt.base, torch_sdt_semaphore_pytorch_" name "\n" \
	".asciz \"pytorch\"\n .asciz \"" name "\"\n .asciz \"" args "\"\n994: .balign 4\n .popsection\n" \
	".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
	".weak _.stapsdt.base\n .hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n .size _.stapsdt.base,1\n .popsection\n.endif\n"
#define MALLOC(p, device, size, stream) \
	if (__builtin_expect(torch_sdt_semaphore_pytorch_malloc, 0)) \
		__asm__ __volatile__(NOTE("malloc", "-8@%0 -1@%1 -8@%2 -8@%3") ::"rm"(p), "r"(device), "rm"(size), "m"(stream))
#define FREE(p) \
	if (__builtin_expect(torch_sdt_semaphore_pytorch_free, 0)) __asm__ __volatile__(NOTE("free", "-8@%0") ::"rm"(p))
#else
#define MALLOC(p, device, size, stream)
#define FREE(p)
#endif

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t size);
}

namespace c10::cuda::CUDACachingAllocator::Native {

const size_t block = 1 << 16, segment = 2 << 20;
static std::mutex guard;
static std::set<uint64_t> unused;

struct __attribute__((visibility("hidden"))) NativeCachingAllocator {
	__attribute__((noinline)) void malloc(void **at, signed char device, size_t size, void *stream) {
		std::lock_guard<std::mutex> locked(guard);
		if (unused.empty()) {
			static void *context;
			uint64_t from = 0;
			if (!context && (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))) abort();
			if (cuCtxSetCurrent(context) || cuMemAlloc_v2(&from, segment)) abort();
			for (uint64_t i = 0; i < segment; i += block) unused.insert(from + i);
		}
		*at = (void *)*unused.begin();
		unused.erase(unused.begin());
		__asm__ __volatile__("" ::"r"(this), "r"((int)device), "r"(size), "r"(stream));
	}
	__attribute__((noinline)) void free(void *at) {
		std::lock_guard<std::mutex> locked(guard);
		unused.insert((uint64_t)at);
		__asm__ __volatile__("" ::"r"(this));
	}
} allocator;

static __attribute__((noinline)) void local_raw_delete(void *at) {
	FREE(at);
	allocator.free(at);
}

extern "C" __attribute__((visibility("default"), noinline)) void *torch_empty(size_t size, int device, void *stream) {
	void *at = nullptr;
	allocator.malloc(&at, (signed char)device, size, stream);
	signed char of = (signed char)device;
	MALLOC(at, of, size, stream);
	return at;
}

// Another place with the same probe, as PyTorch has.
extern "C" __attribute__((visibility("default"), noinline)) void *torch_empty_too(size_t size, int device, void *stream) {
	void *at = nullptr;
	allocator.malloc(&at, (signed char)device, size, stream);
	signed char of = (signed char)device;
	MALLOC(at, of, size, stream);
	return (char *)at;
}

extern "C" __attribute__((visibility("default"))) void torch_delete(void *at) { local_raw_delete(at); }

} // namespace c10::cuda::CUDACachingAllocator::Native
