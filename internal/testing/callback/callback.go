package callback

// void callback_call(void *handle);
// int callback_thread(void *handle);
import "C"

import (
	"fmt"
	"runtime/cgo"
	"syscall"
	"unsafe"
)

// Call has C call f, on the calling goroutine.
func Call(f func()) {
	h := cgo.NewHandle(f)
	defer h.Delete()
	C.callback_call(unsafe.Pointer(&h))
}

// Thread has a thread that C starts call f, and waits until f has returned.
func Thread(f func()) error {
	h := cgo.NewHandle(f)
	defer h.Delete()
	if rc := C.callback_thread(unsafe.Pointer(&h)); rc != 0 {
		return fmt.Errorf("callback: start a thread: %w", syscall.Errno(rc))
	}
	return nil
}

//export callbackRun
func callbackRun(handle unsafe.Pointer) {
	(*cgo.Handle)(handle).Value().(func())()
}
