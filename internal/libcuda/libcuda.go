// Package libcuda finds the library of CUDA's driver, and asks it which devices a process sees. It
// is for packages that must not know each other: alloc/cuda works with the devices, nvml only
// wants their order.
package libcuda

import (
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// Open loads the library when it is first called. A process does this once.
var Open = sync.OnceValues(func() (dylib.Library, error) { return dylib.Open(names()...) })

// names are the places of the library: first where the system's loader searches, then the
// folders of containers, WSL and NixOS.
func names() []string {
	if runtime.GOOS == "windows" {
		return []string{"nvcuda.dll"}
	}
	return []string{
		"libcuda.so.1",
		"/usr/local/nvidia/lib64/libcuda.so.1",
		"/usr/lib/wsl/lib/libcuda.so.1",
		"/run/opengl-driver/lib/libcuda.so.1",
	}
}

// Find looks a function up by its name, and, if the driver lacks it, by its older name, unless that is empty.
// It returns 0 if the driver has neither.
func Find(lib dylib.Library, name, older string) dylib.Func {
	f := lib.Func(name)
	if f == 0 && older != "" {
		f = lib.Func(older)
	}
	return f
}

// noDevice is CUDA_ERROR_NO_DEVICE.
const noDevice = 100

// UUIDs returns the UUIDs of the devices that the process sees, in the order of their
// ordinals; none if there are none. It makes no context, and so takes no memory of the devices.
func UUIDs() ([]string, error) {
	lib, err := Open()
	if err != nil {
		return nil, err
	}
	var n, dev int32
	c := caller{lib: lib}
	c.call("cuInit", "", 0)
	if c.code == noDevice {
		return nil, nil
	}
	c.call("cuDeviceGetCount", "", uintptr(unsafe.Pointer(&n)))
	var uuids []string
	for i := range n {
		var uuid [16]byte
		var name [256]byte
		c.call("cuDeviceGet", "", uintptr(unsafe.Pointer(&dev)), uintptr(i))
		c.call("cuDeviceGetUuid_v2", "cuDeviceGetUuid", uintptr(unsafe.Pointer(&uuid)), uintptr(dev))
		c.call("cuDeviceGetName", "", uintptr(unsafe.Pointer(&name)), uintptr(len(name)-1), uintptr(dev))
		uuids = append(uuids, UUID(uuid, string(name[:])))
	}
	if c.code != 0 {
		return nil, fmt.Errorf("CUDA devices: %s: error %d", c.failed, c.code)
	}
	return uuids, nil
}

// caller calls functions until one fails.
type caller struct {
	lib    dylib.Library
	failed string
	code   int32
}

// call calls one; the rules are dylib.Func's.
//
//go:uintptrescapes
func (c *caller) call(name, older string, args ...uintptr) {
	if c.code != 0 {
		return
	}
	f := Find(c.lib, name, older)
	if f == 0 {
		c.failed, c.code = name+" is missing", -1
		return
	}
	c.failed, c.code = name, f.Call(args...)
}

// UUID spells a UUID as nvidia-smi does. Only the device's name tells a MIG instance, as in
// "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
func UUID(uuid [16]byte, name string) string {
	h := hex.EncodeToString(uuid[:])
	prefix := "GPU"
	if strings.Contains(name, " MIG ") {
		prefix = "MIG"
	}
	return strings.Join([]string{prefix, h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
