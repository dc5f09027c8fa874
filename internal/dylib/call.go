//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package dylib

import "github.com/ebitengine/purego"

// Call calls the function. What a pointer among the arguments points to is on the heap and
// stays alive during the call, if the conversion to uintptr stands in the call's own
// argument list:
//
//	var n int32
//	code := f.Call(uintptr(unsafe.Pointer(&n)))
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) int32 {
	result, _, _ := purego.SyscallN(uintptr(f), args...)
	return int32(result)
}
