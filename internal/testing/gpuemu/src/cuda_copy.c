// Copies and fills. They are done at once, on the host pages behind the device's
// addresses; the stream's clock then says when a device would have been done.
#include "driver.h"

#include <string.h>

// Bytes a nanosecond, of no particular GPU: PCIe 4 x16, and device memory.
enum { BUS = 24, LOCAL = 700 };

static void *pointer(CUdeviceptr at) { return (void *)(uintptr_t)at; }

// side checks one end of a copy: device memory must lie in one allocation, or be mapped,
// anything else is the host's own affair.
static int side(CUdeviceptr at, size_t n, int device_only) {
	if (heap_owns(at))
		return heap_range(at, n, 1);
	if (virtual_owns(at))
		return virtual_range(at, n);
	return at && !device_only;
}

static CUresult copy(CUcontext ctx, CUstream s, CUdeviceptr dst, CUdeviceptr src, size_t n, int dst_device, int src_device, int wait) {
	if (!n)
		return SUCCESS;
	if (!side(dst, n, dst_device) || !side(src, n, src_device))
		return INVALID_VALUE;
	if (wait)
		clock_drain(ctx); // else it would see what is there before the work
	memmove(pointer(dst), pointer(src), n);
	int local = heap_owns(dst) && heap_owns(src);
	long long done = clock_queue(ctx, s, (long long)(n / (local ? LOCAL : BUS)));
	if (!done)
		return INVALID_HANDLE;
	if (wait)
		clock_wait(done);
	return SUCCESS;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
	ENTER_CONTEXT();
	return copy(ctx, NULL, dst, src, n, 0, 0, 1);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
	ENTER_CONTEXT();
	return copy(ctx, s, dst, src, n, 0, 0, 0);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
	ENTER_CONTEXT();
	return copy(ctx, NULL, dst, (CUdeviceptr)(uintptr_t)src, n, 1, 0, 1);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream s) {
	ENTER_CONTEXT();
	return copy(ctx, s, dst, (CUdeviceptr)(uintptr_t)src, n, 1, 0, 0);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
	ENTER_CONTEXT();
	return copy(ctx, NULL, (CUdeviceptr)(uintptr_t)dst, src, n, 0, 1, 1);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream s) {
	ENTER_CONTEXT();
	return copy(ctx, s, (CUdeviceptr)(uintptr_t)dst, src, n, 0, 1, 0);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
	ENTER_CONTEXT();
	return copy(ctx, NULL, dst, src, n, 1, 1, 0);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
	ENTER_CONTEXT();
	return copy(ctx, s, dst, src, n, 1, 1, 0);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n) {
	ENTER_CONTEXT();
	if (!to || !from)
		return INVALID_CONTEXT;
	clock_drain(from);
	clock_drain(to);
	return copy(ctx, NULL, dst, src, n, 1, 1, 0);
}

// A 2D copy, laid out as the driver has it.
typedef struct {
	size_t src_x, src_y;
	unsigned src_kind;
	const void *src_host;
	CUdeviceptr src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	unsigned dst_kind;
	void *dst_host;
	CUdeviceptr dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
} copy2d;

enum { KIND_HOST = 1, KIND_DEVICE = 2, KIND_ARRAY = 3, KIND_UNIFIED = 4 };

static CUresult copy_rows(CUcontext ctx, CUstream s, const copy2d *c, int wait) {
	if (!c || c->src_kind == KIND_ARRAY || c->dst_kind == KIND_ARRAY || !c->src_kind || !c->dst_kind)
		return c ? NOT_SUPPORTED : INVALID_VALUE;
	CUdeviceptr src = c->src_kind == KIND_HOST ? (CUdeviceptr)(uintptr_t)c->src_host : c->src_device;
	CUdeviceptr dst = c->dst_kind == KIND_HOST ? (CUdeviceptr)(uintptr_t)c->dst_host : c->dst_device;
	size_t src_pitch = c->src_pitch ? c->src_pitch : c->width, dst_pitch = c->dst_pitch ? c->dst_pitch : c->width;
	if (src_pitch < c->src_x + c->width || dst_pitch < c->dst_x + c->width)
		return INVALID_VALUE;
	for (size_t y = 0; y < c->height; y++) {
		CUresult r = copy(ctx, s, dst + (c->dst_y + y) * dst_pitch + c->dst_x, src + (c->src_y + y) * src_pitch + c->src_x,
			c->width, c->dst_kind == KIND_DEVICE, c->src_kind == KIND_DEVICE, 0);
		if (r)
			return r;
	}
	if (wait)
		clock_wait(clock_queue(ctx, s, 0));
	return SUCCESS;
}

EXPORT CUresult cuMemcpy2D_v2(const copy2d *c) {
	ENTER_CONTEXT();
	return copy_rows(ctx, NULL, c, 1);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const copy2d *c) {
	ENTER_CONTEXT();
	return copy_rows(ctx, NULL, c, 1);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const copy2d *c, CUstream s) {
	ENTER_CONTEXT();
	return copy_rows(ctx, s, c, 0);
}

// fill writes rows of n values of size bytes each; the last row needs no padding.
static CUresult fill(CUcontext ctx, CUstream s, CUdeviceptr dst, size_t pitch, const void *value, size_t size, size_t n, size_t rows) {
	if (!n || !rows)
		return SUCCESS;
	size_t width, whole;
	if (dst % size || __builtin_mul_overflow(n, size, &width) || (rows > 1 && (pitch < width || pitch % size)) ||
	    __builtin_mul_overflow(pitch, rows - 1, &whole) || !heap_range(dst, whole + width, 1))
		return INVALID_VALUE;
	if (clock_held() && size == 1 && rows == 1) {
		long long done = clock_queue(ctx, s, (long long)(n / LOCAL));
		if (!done)
			return INVALID_HANDLE;
		clock_store(done, dst, n, *(const unsigned char *)value);
		return SUCCESS;
	}
	for (size_t y = 0; y < rows; y++) {
		char *row = pointer(dst + y * pitch);
		if (size == 1)
			memset(row, *(const unsigned char *)value, n);
		else
			for (size_t x = 0; x < n; x++)
				memcpy(row + x * size, value, size);
	}
	return clock_queue(ctx, s, (long long)(width * rows / LOCAL)) ? SUCCESS : INVALID_HANDLE;
}

#define FILL(name, name_async, name_2d, name_2d_async, type)                                                              \
	EXPORT CUresult name(CUdeviceptr dst, type v, size_t n) {                                                         \
		ENTER_CONTEXT();                                                                                          \
		return fill(ctx, NULL, dst, 0, &v, sizeof v, n, 1);                                                       \
	}                                                                                                                 \
	EXPORT CUresult name_async(CUdeviceptr dst, type v, size_t n, CUstream s) {                                       \
		ENTER_CONTEXT();                                                                                          \
		return fill(ctx, s, dst, 0, &v, sizeof v, n, 1);                                                          \
	}                                                                                                                 \
	EXPORT CUresult name_2d(CUdeviceptr dst, size_t pitch, type v, size_t width, size_t height) {                     \
		ENTER_CONTEXT();                                                                                          \
		return fill(ctx, NULL, dst, pitch, &v, sizeof v, width, height);                                          \
	}                                                                                                                 \
	EXPORT CUresult name_2d_async(CUdeviceptr dst, size_t pitch, type v, size_t width, size_t height, CUstream s) {   \
		ENTER_CONTEXT();                                                                                          \
		return fill(ctx, s, dst, pitch, &v, sizeof v, width, height);                                             \
	}

FILL(cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
FILL(cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short)
FILL(cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned)
