//go:build linux

package nvml

import (
	"encoding/hex"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// cudaUUIDs asks CUDA for its devices, in the order of their ordinals. It makes no
// context, so that it takes no memory of theirs.
func cudaUUIDs() ([]string, error) {
	lib, err := dylib.Open("libcuda.so.1")
	if err != nil {
		return nil, errNoCUDA
	}
	start, count, get, uuid := lib.Func("cuInit"), lib.Func("cuDeviceGetCount"), lib.Func("cuDeviceGet"), lib.Func("cuDeviceGetUuid_v2")
	if uuid == 0 { // before CUDA 11.4
		uuid = lib.Func("cuDeviceGetUuid")
	}
	if start == 0 || count == 0 || get == 0 || uuid == 0 {
		return nil, errNoCUDA
	}
	const noDevice = 100
	var n int32
	switch code := start.Call(0); {
	case code == noDevice: // none is left
		return nil, nil
	case code != 0 || count.Call(uintptr(unsafe.Pointer(&n))) != 0:
		return nil, errNoCUDA
	}
	uuids := make([]string, n)
	for i := range uuids {
		var device int32
		var b [16]byte
		if get.Call(uintptr(unsafe.Pointer(&device)), uintptr(i)) != 0 || uuid.Call(uintptr(unsafe.Pointer(&b)), uintptr(device)) != 0 {
			return nil, errNoCUDA
		}
		h := hex.EncodeToString(b[:])
		uuids[i] = h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	}
	return uuids, nil
}
