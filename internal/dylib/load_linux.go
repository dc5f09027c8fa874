//go:build !nogpu && (amd64 || arm64)

package dylib

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// load stays on one thread: dlerror tells only the thread whose dlopen failed why it did.
func load(name string) (handle uintptr, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_LAZY|purego.RTLD_LOCAL)
}

func lookup(handle uintptr, name string) (address uintptr) {
	address, _ = purego.Dlsym(handle, name)
	return address
}
