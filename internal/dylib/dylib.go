// Package dylib calls C functions of a library that is loaded at run time, with cgo and
// without. A program that uses it links no library, and starts on a machine that has none. The
// build tag nogpu leaves the loader out.
package dylib

// Library is a loaded library. It stays loaded until the process ends.
type Library struct{ handle uintptr }

// Func is the address of a C function that returns an int and takes integers and
// pointers. 0 is no function.
type Func uintptr

// Open loads the first of these libraries that can be loaded: names that the system's
// loader searches for, or paths. If none can be loaded, the error is the first library's.
func Open(names ...string) (Library, error) {
	var first error
	for _, name := range names {
		handle, err := load(name)
		if err == nil {
			return Library{handle}, nil
		}
		if first == nil {
			first = err
		}
	}
	return Library{}, first
}

// Func returns a function of the library, or 0 if it has none with that name.
func (l Library) Func(name string) Func { return Func(lookup(l.handle, name)) }
