//go:build !nogpu && (amd64 || arm64)

package dylib

import "github.com/ebitengine/purego"

// Open loads the first of these libraries that can be loaded: names that the system's
// loader searches for, or paths. The error is of the first.
func Open(names ...string) (Library, error) {
	var first error
	for _, name := range names {
		handle, err := purego.Dlopen(name, purego.RTLD_LAZY|purego.RTLD_LOCAL)
		if err == nil {
			return Library{handle}, nil
		}
		if first == nil {
			first = err
		}
	}
	return Library{}, first
}

// Func returns a function of the library, 0 if it has none of that name.
func (l Library) Func(name string) Func {
	address, _ := purego.Dlsym(l.handle, name)
	return Func(address)
}
