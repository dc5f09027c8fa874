//go:build cgo && linux

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>

// cuda_uuids fills in the UUIDs of CUDA's devices in the order of their
// ordinals and returns their number, or less than zero without CUDA. The library
// stays open: closing it under its own threads would not be safe.
static int cuda_uuids(unsigned char (*uuids)[16], int room) {
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (!lib)
		return -1;
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	int (*count)(int *) = (int (*)(int *))dlsym(lib, "cuDeviceGetCount");
	int (*get)(int *, int) = (int (*)(int *, int))dlsym(lib, "cuDeviceGet");
	int (*uuid)(void *, int) = (int (*)(void *, int))dlsym(lib, "cuDeviceGetUuid_v2");
	if (!uuid) // before CUDA 11.4
		uuid = (int (*)(void *, int))dlsym(lib, "cuDeviceGetUuid");
	if (!init || !count || !get || !uuid)
		return -1;
	int n = 0, code = init(0);
	if (code == 100) // CUDA_ERROR_NO_DEVICE: none is left
		return 0;
	if (code || count(&n) || n > room)
		return -1;
	for (int i = 0; i < n; i++) {
		int device;
		if (get(&device, i) || uuid(uuids[i], device))
			return -1;
	}
	return n;
}
*/
import "C"

import "encoding/hex"

// cudaUUIDs asks CUDA for its devices. It makes no context, so that it takes no
// memory of theirs.
func cudaUUIDs() ([]string, error) {
	var raw [128][16]C.uchar
	n := C.cuda_uuids(&raw[0], C.int(len(raw)))
	if n < 0 {
		return nil, errNoCUDA
	}
	uuids := make([]string, n)
	for i := range uuids {
		var b [16]byte
		for k, c := range raw[i] {
			b[k] = byte(c)
		}
		h := hex.EncodeToString(b[:])
		uuids[i] = h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	}
	return uuids, nil
}
