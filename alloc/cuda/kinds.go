package cuda

import (
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

type memPool uintptr // CUmemoryPool

// poolProperties is CUmemPoolProps.
type poolProperties struct {
	kind, handleTypes int32
	location          location
	windows           uintptr
	maxSize           uintptr
	reserved          [56]byte
}

// The attributes of a pool, CUmemPool_attribute, and the device's that says whether there are pools.
const (
	poolReleaseThreshold = 4
	poolReserved         = 5
	poolUsed             = 7

	memoryPoolsSupported = 115
)

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

// kinds has the addresses of these functions; 0 where the driver has none.
type kinds struct {
	poolCreate, poolDestroy, poolDefault                                function
	poolGetAttribute, poolSetAttribute, poolTrimTo, poolAlloc, poolFree function
	streamWaitEvent, allocManaged, hostAlloc, hostFree, hostPointer     function
}

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
