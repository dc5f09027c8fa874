package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
)

// driver has the addresses of the driver's functions that are used here, looked up when
// the library was loaded.
type driver struct {
	init, driverGetVersion, getErrorName, getErrorString function

	deviceGetCount, deviceGet, deviceGetName, deviceGetUUID function
	deviceGetAttribute, deviceTotalMem                      function

	primaryCtxRetain, primaryCtxRelease                             function
	ctxPushCurrent, ctxPopCurrent, ctxGetDevice, ctxSynchronize     function
	memAlloc, memFree, memGetInfo, memcpyHtoD, memcpyDtoH           function
	eventCreate, eventDestroy, eventRecord, eventSync, eventElapsed function
	eventQuery, memsetD8Async, memcpyPeer                           function

	// Virtual memory; 0 on a driver that has none.
	addressReserve, memGranularity, addressFree, memCreate, memRelease, memMap, memSetAccess, memUnmap function

	kinds
}

// kinds has the addresses of these functions; 0 where the driver has none.
type kinds struct {
	poolCreate, poolDestroy, poolDefault                                function
	poolGetAttribute, poolSetAttribute, poolTrimTo, poolAlloc, poolFree function
	streamWaitEvent, allocManaged, hostAlloc, hostFree, hostPointer     function
}

// poolProperties is CUmemPoolProps.
type poolProperties struct {
	kind, handleTypes int32
	location          location
	windows           uintptr
	maxSize           uintptr
	reserved          [56]byte
}

// function is a C function that returns a CUresult.
type function dylib.Func

// call calls it; the rules are dylib.Func's.
//
//go:uintptrescapes
func (f function) call(args ...uintptr) error {
	if code := dylib.Func(f).Call(args...); code != 0 {
		return Error(code)
	}
	return nil
}

type (
	device  int32   // CUdevice
	context uintptr // CUcontext
	event   uintptr // CUevent; 0 is none
)

type memPool uintptr // CUmemoryPool

// location, allocationProperties and accessDescription are CUmemLocation, CUmemAllocationProp and
// CUmemAccessDesc.
type (
	location             struct{ kind, id int32 }
	allocationProperties struct {
		kind, handleTypes int32
		location          location
		windows           uintptr
		flags             [8]byte
	}
	accessDescription struct {
		location location
		flags    int32
	}
)

// The values of their fields.
const (
	allocationPinned = 1
	locationDevice   = 1
	accessReadWrite  = 3
)

// The attributes of a pool, CUmemPool_attribute, and the device's that says whether there are pools.
const (
	poolReleaseThreshold = 4
	poolReserved         = 5
	poolUsed             = 7

	memoryPoolsSupported = 115
)

// symbols are the names of the functions in the library, as the macros of cuda.h
// resolve them. Where there are two, an older driver has only the second.
func (d *driver) symbols() []symbol {
	return []symbol{
		{&d.init, "cuInit", ""},
		{&d.driverGetVersion, "cuDriverGetVersion", ""},
		{&d.getErrorName, "cuGetErrorName", ""},
		{&d.getErrorString, "cuGetErrorString", ""},
		{&d.deviceGetCount, "cuDeviceGetCount", ""},
		{&d.deviceGet, "cuDeviceGet", ""},
		{&d.deviceGetName, "cuDeviceGetName", ""},
		{&d.deviceGetUUID, "cuDeviceGetUuid_v2", "cuDeviceGetUuid"},
		{&d.deviceGetAttribute, "cuDeviceGetAttribute", ""},
		{&d.deviceTotalMem, "cuDeviceTotalMem_v2", ""},
		{&d.primaryCtxRetain, "cuDevicePrimaryCtxRetain", ""},
		{&d.primaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"},
		{&d.ctxPushCurrent, "cuCtxPushCurrent_v2", ""},
		{&d.ctxPopCurrent, "cuCtxPopCurrent_v2", ""},
		{&d.ctxGetDevice, "cuCtxGetDevice", ""},
		{&d.ctxSynchronize, "cuCtxSynchronize", ""},
		{&d.memAlloc, "cuMemAlloc_v2", ""},
		{&d.memFree, "cuMemFree_v2", ""},
		{&d.memGetInfo, "cuMemGetInfo_v2", ""},
		{&d.memcpyHtoD, "cuMemcpyHtoD_v2", ""},
		{&d.memcpyDtoH, "cuMemcpyDtoH_v2", ""},
		{&d.eventCreate, "cuEventCreate", ""},
		{&d.eventDestroy, "cuEventDestroy_v2", ""},
		{&d.eventRecord, "cuEventRecord", ""},
		{&d.eventSync, "cuEventSynchronize", ""},
		{&d.eventElapsed, "cuEventElapsedTime", ""},
		{&d.eventQuery, "cuEventQuery", ""},
		{&d.memsetD8Async, "cuMemsetD8Async", ""},
		{&d.memcpyPeer, "cuMemcpyPeer", ""},
	}
}

type symbol struct {
	function    *function
	name, older string
}

// virtualSymbols are the functions of virtual memory, which an old driver may lack.
func (d *driver) virtualSymbols() []symbol {
	return []symbol{
		{&d.addressReserve, "cuMemAddressReserve", ""},
		{&d.memGranularity, "cuMemGetAllocationGranularity", ""},
		{&d.addressFree, "cuMemAddressFree", ""},
		{&d.memCreate, "cuMemCreate", ""},
		{&d.memRelease, "cuMemRelease", ""},
		{&d.memMap, "cuMemMap", ""},
		{&d.memSetAccess, "cuMemSetAccess", ""},
		{&d.memUnmap, "cuMemUnmap", ""},
	}
}

// kindsSymbols are the functions of pools, managed and host memory, which an old driver may lack.
func (d *driver) kindsSymbols() []symbol {
	return []symbol{
		{&d.poolCreate, "cuMemPoolCreate", ""},
		{&d.poolDestroy, "cuMemPoolDestroy", ""},
		{&d.poolDefault, "cuDeviceGetDefaultMemPool", ""},
		{&d.poolGetAttribute, "cuMemPoolGetAttribute", ""},
		{&d.poolSetAttribute, "cuMemPoolSetAttribute", ""},
		{&d.poolTrimTo, "cuMemPoolTrimTo", ""},
		{&d.poolAlloc, "cuMemAllocFromPoolAsync", ""},
		{&d.poolFree, "cuMemFreeAsync", ""},
		{&d.streamWaitEvent, "cuStreamWaitEvent", ""},
		{&d.allocManaged, "cuMemAllocManaged", ""},
		{&d.hostAlloc, "cuMemHostAlloc", ""},
		{&d.hostFree, "cuMemFreeHost", ""},
		{&d.hostPointer, "cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer"},
	}
}

// library loads the driver when it is first called, and starts it. A process does this once.
var library = sync.OnceValues(func() (*driver, error) {
	lib, err := libcuda.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDriver, err)
	}
	d := new(driver)
	for _, s := range d.symbols() {
		address := libcuda.Find(lib, s.name, s.older)
		if address == 0 {
			return nil, fmt.Errorf("%w: it has no function %s", errDriverTooOld, s.name)
		}
		*s.function = function(address)
	}
	for _, s := range slices.Concat(d.virtualSymbols(), d.kindsSymbols()) {
		*s.function = function(libcuda.Find(lib, s.name, s.older))
	}
	errorTexts.Store(&errorFunctions{name: dylib.Func(d.getErrorName), text: dylib.Func(d.getErrorString)})
	switch err := d.init.call(0); {
	case errors.Is(err, codeNoDevice):
		return nil, fmt.Errorf("%w (%w)", errNoDevice, err)
	case err != nil:
		return nil, fmt.Errorf("%w: cuInit: %w", errDriverRefuses, err)
	}
	return d, nil
})

// In the calls below a pointer is converted to an integer only in the arguments of call: call keeps the memory that it
// points to alive and in place.

func (d *driver) version() (v int32, err error) {
	err = d.driverGetVersion.call(uintptr(unsafe.Pointer(&v)))
	return v, err
}

func (d *driver) count() (n int32, err error) {
	err = d.deviceGetCount.call(uintptr(unsafe.Pointer(&n)))
	return n, err
}

func (d *driver) device(ordinal int) (dev device, err error) {
	if ordinal != int(int32(ordinal)) {
		return 0, codeInvalidDevice
	}
	err = d.deviceGet.call(uintptr(unsafe.Pointer(&dev)), uintptr(int32(ordinal)))
	return dev, err
}

func (d *driver) name(dev device) (string, error) {
	var s [256]byte
	err := d.deviceGetName.call(uintptr(unsafe.Pointer(&s)), uintptr(len(s)-1), uintptr(dev))
	return goString(unsafe.Pointer(&s)), err
}

func (d *driver) uuid(dev device) (uuid [16]byte, err error) {
	err = d.deviceGetUUID.call(uintptr(unsafe.Pointer(&uuid)), uintptr(dev))
	return uuid, err
}

func (d *driver) attribute(key int, dev device) (value int32, err error) {
	err = d.deviceGetAttribute.call(uintptr(unsafe.Pointer(&value)), uintptr(key), uintptr(dev))
	return value, err
}

func (d *driver) totalMemory(dev device) (bytes uint64, err error) {
	err = d.deviceTotalMem.call(uintptr(unsafe.Pointer(&bytes)), uintptr(dev))
	return bytes, err
}

func (d *driver) retainPrimary(dev device) (ctx context, err error) {
	err = d.primaryCtxRetain.call(uintptr(unsafe.Pointer(&ctx)), uintptr(dev))
	return ctx, err
}

func (d *driver) releasePrimary(dev device) error { return d.primaryCtxRelease.call(uintptr(dev)) }

func (d *driver) push(ctx context) error { return d.ctxPushCurrent.call(uintptr(ctx)) }

func (d *driver) pop() error {
	var ctx context
	return d.ctxPopCurrent.call(uintptr(unsafe.Pointer(&ctx)))
}

func (d *driver) currentDevice() (dev device, err error) {
	err = d.ctxGetDevice.call(uintptr(unsafe.Pointer(&dev)))
	return dev, err
}

func (d *driver) synchronize() error { return d.ctxSynchronize.call() }

func (d *driver) alloc(n int64) (p uint64, err error) {
	err = d.memAlloc.call(uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

func (d *driver) free(p uint64) error { return d.memFree.call(uintptr(p)) }

func (d *driver) memInfo() (free, total uint64, err error) {
	err = d.memGetInfo.call(uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

func (d *driver) copyToDevice(dst uint64, src []byte) error {
	return d.memcpyHtoD.call(uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)))
}

func (d *driver) copyToHost(dst []byte, src uint64) error {
	return d.memcpyDtoH.call(uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)))
}

func (d *driver) copyPeer(dst uint64, to context, src uint64, from context, n int64) error {
	return d.memcpyPeer.call(uintptr(dst), uintptr(to), uintptr(src), uintptr(from), uintptr(n))
}

func (d *driver) fill(p uint64, n int64, value byte, s alloc.Stream) error {
	return d.memsetD8Async.call(uintptr(p), uintptr(value), uintptr(n), uintptr(s))
}

// eventWithoutTiming is CU_EVENT_DISABLE_TIMING.
const eventWithoutTiming = 2

func (d *driver) createEvent(flags uint32) (e event, err error) {
	err = d.eventCreate.call(uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, err
}

func (d *driver) destroyEvent(e event) error { return d.eventDestroy.call(uintptr(e)) }

func (d *driver) recordEvent(e event, s alloc.Stream) error {
	return d.eventRecord.call(uintptr(e), uintptr(s))
}

func (d *driver) queryEvent(e event) error { return d.eventQuery.call(uintptr(e)) }

func (d *driver) waitEvent(e event) error { return d.eventSync.call(uintptr(e)) }

func (d *driver) elapsed(start, stop event) (ms float32, err error) {
	err = d.eventElapsed.call(uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(stop))
	return ms, err
}

// granularity returns the unit in which memory can be created, in bytes.
func (d *driver) granularity(dev device) (unit uint64, err error) {
	const minimum = 0
	properties := allocationProperties{kind: allocationPinned, location: location{locationDevice, int32(dev)}}
	err = d.memGranularity.call(uintptr(unsafe.Pointer(&unit)), uintptr(unsafe.Pointer(&properties)), minimum)
	return unit, err
}

func (d *driver) reserve(n int64) (p uint64, err error) {
	err = d.addressReserve.call(uintptr(unsafe.Pointer(&p)), uintptr(n), 0, 0, 0)
	return p, err
}

func (d *driver) releaseAddresses(p uint64, n int64) error {
	return d.addressFree.call(uintptr(p), uintptr(n))
}

// open lets the device read and write mapped memory.
func (d *driver) open(p uint64, n int64, dev device) error {
	access := accessDescription{location{locationDevice, int32(dev)}, accessReadWrite}
	return d.memSetAccess.call(uintptr(p), uintptr(n), uintptr(unsafe.Pointer(&access)), 1)
}

func (d *driver) unmap(p uint64, n int64) error { return d.memUnmap.call(uintptr(p), uintptr(n)) }

func (d *driver) newPool(dev device, maxSize int64) (p memPool, err error) {
	properties := poolProperties{kind: allocationPinned, location: location{locationDevice, int32(dev)}, maxSize: uintptr(maxSize)}
	err = d.poolCreate.call(uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(&properties)))
	return p, err
}

func (d *driver) defaultPool(dev device) (p memPool, err error) {
	err = d.poolDefault.call(uintptr(unsafe.Pointer(&p)), uintptr(dev))
	return p, err
}

func (d *driver) destroyPool(p memPool) error { return d.poolDestroy.call(uintptr(p)) }

func (d *driver) trimPool(p memPool, keep int64) error {
	return d.poolTrimTo.call(uintptr(p), uintptr(keep))
}

func (d *driver) poolAttribute(p memPool, key int) (value uint64, err error) {
	err = d.poolGetAttribute.call(uintptr(p), uintptr(key), uintptr(unsafe.Pointer(&value)))
	return value, err
}

func (d *driver) setPoolAttribute(p memPool, key int, value uint64) error {
	return d.poolSetAttribute.call(uintptr(p), uintptr(key), uintptr(unsafe.Pointer(&value)))
}

func (d *driver) allocFromPool(n int64, p memPool, s alloc.Stream) (at uint64, err error) {
	err = d.poolAlloc.call(uintptr(unsafe.Pointer(&at)), uintptr(n), uintptr(p), uintptr(s))
	return at, err
}

func (d *driver) freeToPool(at uint64, s alloc.Stream) error {
	return d.poolFree.call(uintptr(at), uintptr(s))
}

// attachGlobal lets every stream reach managed memory: CU_MEM_ATTACH_GLOBAL.
const attachGlobal = 1

func (d *driver) managed(n int64) (p uint64, err error) {
	err = d.allocManaged.call(uintptr(unsafe.Pointer(&p)), uintptr(n), attachGlobal)
	return p, err
}

// hostFlags are the flags of cuMemHostAlloc. All contexts may use the memory.
type hostFlags uint32

const (
	hostPortable      hostFlags = 1
	hostMapped        hostFlags = 2
	hostWriteCombined hostFlags = 4
)

func (d *driver) pinned(n int64, flags hostFlags) (p uintptr, err error) {
	err = d.hostAlloc.call(uintptr(unsafe.Pointer(&p)), uintptr(n), uintptr(flags))
	return p, err
}

func (d *driver) unpin(p uintptr) error { return d.hostFree.call(p) }

func (d *driver) devicePointer(p uintptr) (at uint64, err error) {
	err = d.hostPointer.call(uintptr(unsafe.Pointer(&at)), p, 0)
	return at, err
}
