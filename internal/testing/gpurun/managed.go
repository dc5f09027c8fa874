package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// managed shows where the views count managed memory before and after the
// device has touched it.
func managed(w io.Writer, v *view) (err error) {
	const size = 256 * alloc.MiB
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	lib, err := dylib.Open("libcuda.so.1")
	if err != nil {
		return err
	}
	call := func(function string, args ...uintptr) error {
		if f := lib.Func(function); f == 0 {
			return fmt.Errorf("the driver has no %s", function)
		} else if code := f.Call(args...); code != 0 {
			return fmt.Errorf("%s: %w", function, cuda.Error(code))
		}
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	memory := new(struct{ context, address uintptr }) // on the heap: see dylib.Func.Call
	defer runtime.KeepAlive(memory)
	if err := call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&memory.context)), 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, call("cuDevicePrimaryCtxRelease_v2", 0)) }()
	if err := call("cuCtxSetCurrent", memory.context); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, call("cuCtxSetCurrent", 0)) }()

	fmt.Fprintln(w, "\tcuMemGetInfo used\tNVML device used\tNVML this process")
	line := func(when string) {
		info, err := dev.MemInfo()
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", when, cell(info.Used(), err), cell(v.used()), cell(v.own()))
	}
	line("before")
	const global = 1 // CU_MEM_ATTACH_GLOBAL
	if err := call("cuMemAllocManaged", uintptr(unsafe.Pointer(&memory.address)), uintptr(size), global); err != nil {
		return err
	}
	line(fmt.Sprintf("%v allocated", size))
	err = errors.Join(call("cuMemsetD8_v2", memory.address, 1, uintptr(size)), dev.(capability.Synchronizer).Synchronize())
	line("filled by the device")
	err = errors.Join(err, call("cuMemFree_v2", memory.address))
	line("freed")
	return err
}
