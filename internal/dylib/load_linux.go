//go:build !nogpu && (amd64 || arm64)

package dylib

import "github.com/ebitengine/purego"

func load(name string) (handle uintptr, err error) {
	return purego.Dlopen(name, purego.RTLD_LAZY|purego.RTLD_LOCAL)
}

func lookup(handle uintptr, name string) (address uintptr) {
	address, _ = purego.Dlsym(handle, name)
	return address
}
