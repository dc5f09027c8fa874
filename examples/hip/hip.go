//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// hip is a GPU, by the functions of HIP's library. They return a code, 0 for success.
type hip struct {
	ordinal   int32
	setDevice func(ordinal int32) int32
	malloc    func(p *alloc.Ptr, size uintptr) int32
	free      func(p alloc.Ptr) int32
	memInfo   func(free, total *uintptr) int32
	text      func(code int32) string
}

const invalidValue, outOfMemory = 1, 2

func open(library string, ordinal int) (*hip, error) {
	runtime.LockOSThread() // dlopen and dlsym tell only their own thread why they failed
	defer runtime.UnlockOSThread()
	handle, err := purego.Dlopen(library, purego.RTLD_NOW)
	if err != nil {
		return nil, err
	}
	d := &hip{ordinal: int32(ordinal)}
	for name, f := range map[string]any{"hipSetDevice": &d.setDevice, "hipMalloc": &d.malloc, "hipFree": &d.free,
		"hipMemGetInfo": &d.memInfo, "hipGetErrorString": &d.text} {
		symbol, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, err
		}
		purego.RegisterFunc(f, symbol)
	}
	_, err = d.MemInfo() // fails if there is no such device
	return d, err
}

// call calls a function for this device: in HIP, each thread has a current device.
func (d *hip) call(f func() int32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	code := d.setDevice(d.ordinal)
	if code == 0 {
		code = f()
	}
	switch code {
	case 0:
		return nil
	case invalidValue:
		return alloc.ErrUnknownPtr // hipFree returns it for an address that is not hipMalloc's
	case outOfMemory:
		return alloc.ErrOutOfMemory
	}
	return errors.New(d.text(code))
}

func (d *hip) Alloc(n alloc.Bytes) (p alloc.Ptr, err error) {
	if n < 0 {
		return 0, alloc.ErrSize
	}
	err = d.call(func() int32 { return d.malloc(&p, uintptr(max(n, 1))) }) // HIP gives no address for 0 bytes
	if errors.Is(err, alloc.ErrOutOfMemory) {
		err = &alloc.OutOfMemoryError{Device: fmt.Sprint("HIP ", d.ordinal), Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1}
	}
	return p, err
}

func (d *hip) Free(p alloc.Ptr) error {
	if p == 0 { // a success for hipFree
		return alloc.ErrUnknownPtr
	}
	return d.call(func() int32 { return d.free(p) })
}

func (d *hip) MemInfo() (alloc.MemInfo, error) {
	var free, total uintptr
	err := d.call(func() int32 { return d.memInfo(&free, &total) })
	return alloc.MemInfo{Free: alloc.Bytes(free), Total: alloc.Bytes(total)}, err
}

func (d *hip) Name() string { return "HIP" }

func (d *hip) Ordinal() int { return int(d.ordinal) }
