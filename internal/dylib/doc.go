// Package dylib calls C functions of a library that is loaded at run time, with cgo and
// without. A program that uses it links no library, and starts where there is none. The
// build tag nogpu leaves the loader out.
package dylib

// Library is a loaded library. It stays loaded until the process ends.
type Library struct{ handle uintptr }

// Func is the address of a C function that returns an int and takes integers and
// pointers. 0 is no function.
type Func uintptr
