//go:build !nogpu && amd64

package dylib

import "golang.org/x/sys/windows"

// load searches the system's folder alone.
func load(name string) (handle uintptr, err error) {
	h, err := windows.LoadLibraryEx(name, 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	return uintptr(h), err
}

func lookup(handle uintptr, name string) (address uintptr) {
	address, _ = windows.GetProcAddress(windows.Handle(handle), name)
	return address
}
