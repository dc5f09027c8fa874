// The parts of the emulated libcuda.so.1. The declarations are this project's
// own: types as wide as the driver's, and its numbers for errors and attributes.
#ifndef GPUEMU_DRIVER_H
#define GPUEMU_DRIVER_H

#include "state.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	DEVICE_UNAVAILABLE = 46,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	PRIMARY_CONTEXT_ACTIVE = 708,
	CONTEXT_IS_DESTROYED = 709,
	LAUNCH_FAILED = 719,
	NOT_SUPPORTED = 801,
	UNKNOWN = 999, // what calls give once the device fell off the bus
};

#define LEGACY ((CUstream)1)     // CU_STREAM_LEGACY: the NULL stream
#define PER_THREAD ((CUstream)2) // CU_STREAM_PER_THREAD

struct context {
	int alive, primary;
	int device, ordinal; // of the machine, and as this process counts
	unsigned flags, retained;
	CUcontext green_of; // the primary context of a green one
	long long done; // when all work queued so far is finished, ns
	struct context *next;
};

// ENTER begins every exported function that the driver answers before a context is current.
#define ENTER_LOST(lost)                                     \
	do {                                                 \
		if (!driver_ready)                           \
			return NOT_INITIALIZED;              \
		int code_ = state_enter(__func__, lost);     \
		if (code_)                                   \
			return code_;                        \
	} while (0)
#define ENTER() ENTER_LOST(UNKNOWN)

// ENTER_CONTEXT begins those that need one: it declares ctx.
#define ENTER_CONTEXT()                                      \
	ENTER();                                             \
	CUcontext ctx = context_current();                   \
	if (!ctx)                                            \
		return INVALID_CONTEXT;                      \
	if (!ctx->alive)                                     \
	return CONTEXT_IS_DESTROYED

extern int driver_ready; // cuInit was called and went well

int device_valid(CUdevice d);
int device_physical(CUdevice d); // the machine's device behind a valid one
CUcontext context_current(void);

// heap_account takes (or gives back, negative) device memory in this process's
// name; it fails, changing nothing, when the device has not so much left.
CUresult heap_account(int device, int64_t used, int64_t requested, int buffers, int contexts);
void heap_account_events(int n); // made, or destroyed (negative), by this process
void heap_release(CUcontext ctx); // everything a context allocated
uint64_t heap_free(int device);

// heap_take gives whole pages to a pool, of no context; heap_resize says how many bytes of them are
// allocated, 0 if none are; heap_give takes the pages back.
CUresult heap_take(int device, size_t bytes, CUdeviceptr *out);
void heap_resize(CUdeviceptr at, size_t bytes);
void heap_give(CUdeviceptr at);

// pool_free gives what a pool's allocation has back to it, in the order of a stream; 0 if the
// address is none's. pool_synchronized is told that the program waited for a device.
int pool_free(CUcontext ctx, CUdeviceptr at, CUstream s);
void pool_synchronized(int device);

void array_release(CUcontext ctx); // the arrays of a context that is gone

// heap_range says whether [p, p+n) lies in one live allocation; touch makes
// managed pages resident. An address in no device's range is host memory.
int heap_range(CUdeviceptr p, size_t n, int touch);
int heap_owns(CUdeviceptr p);

// virtual_owns and virtual_range are the same for reserved addresses, where a
// range may be of several mappings.
int virtual_owns(CUdeviceptr p);
int virtual_range(CUdeviceptr p, size_t n);

// stream_of gives the stream that a handle means on this thread; NULL is the context's default one.
CUstream stream_of(CUcontext ctx, CUstream s);

// clock_queue adds work of so many ns to a stream, and gives when it is done.
long long clock_queue(CUcontext ctx, CUstream s, long long ns);
long long clock_now(void);
void clock_wait(long long until);

// clock_held says whether tests move the clock. Then clock_drain waits for all work of a
// context, and clock_store writes a value to device memory when its time has come.
int clock_held(void);
void clock_drain(CUcontext ctx);
void clock_store(long long when, CUdeviceptr at, size_t n, int value);

#endif
