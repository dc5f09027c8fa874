//go:build !nogpu && amd64

package dylib

import "golang.org/x/sys/windows"

// Open loads the first of these libraries that can be loaded, from the system's folder.
// The error is of the first.
func Open(names ...string) (Library, error) {
	var first error
	for _, name := range names {
		handle, err := windows.LoadLibraryEx(name, 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
		if err == nil {
			return Library{uintptr(handle)}, nil
		}
		if first == nil {
			first = err
		}
	}
	return Library{}, first
}

// Func returns a function of the library, 0 if it has none of that name.
func (l Library) Func(name string) Func {
	address, _ := windows.GetProcAddress(windows.Handle(l.handle), name)
	return Func(address)
}
