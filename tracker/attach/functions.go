package attach

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// The kinds of memory that a driver is asked for. What a buffer is for, only the program
// knows.
const (
	Device   snapshot.Kind = "Device"   // cuMemAlloc and cuMemAllocPitch
	Managed  snapshot.Kind = "Managed"  // cuMemAllocManaged
	Ordered  snapshot.Kind = "Ordered"  // cuMemAllocAsync: in the order of a stream
	Physical snapshot.Kind = "Physical" // cuMemCreate, which cuMemMap gives an address
	Array    snapshot.Kind = "Array"    // cuArrayCreate and cuArray3DCreate
	Imported snapshot.Kind = "Imported" // of another process or library: its size is unknown, and counts 0
	Pinned   snapshot.Kind = "Pinned"   // cuMemAllocHost, cuMemHostAlloc, cuMemHostRegister: the host's memory
)

// memories are the kinds of memory of package alloc.
var memories = map[snapshot.Kind]alloc.Memory{
	Device: alloc.DeviceMemory, Managed: alloc.ManagedMemory, Ordered: alloc.PoolMemory, Physical: alloc.VirtualMemory,
	Array: alloc.ArrayMemory, Imported: alloc.ImportedMemory, Pinned: alloc.PinnedMemory,
}

// effect is what a call of the driver does to the ledger.
type effect uint8

const (
	allocates effect = iota + 1
	hands            // as allocates, of a library other than the driver
	takesBack        // as frees, of such a library: whether it fails is not known
	allocatesPitched
	allocatesArray
	allocatesArray3D
	allocatesMipmapped
	imports   // memory of somebody else; its handle is not freed by cuMemRelease
	registers // the address is the caller's, in its first argument
	creates   // physical memory: it lives while it is held or mapped
	importsPhysical
	retains
	releases
	mapsMemory
	unmapsMemory
	frees
	makesContext
	destroysContext
	pushesContext
	popsContext
	setsContext
	retainsPrimary
	releasesPrimary
	resetsPrimary
)

// function is a function of the driver, or of another library, and where its arguments are.
type function struct {
	effect   effect
	kind     snapshot.Kind
	size     int    // index of the argument with the size in bytes
	stream   int    // 0: it has none
	device   int    // of those that name one
	address  int    // of what is freed, or of where the address is written
	returned bool   // the address is the result
	library  string // "" is the driver
	handle   bool   // the second argument is a CUipcMemHandle, by value
	symbols  []string
}

// watched returns the functions that are watched: those of the driver, or the pairs and what the
// driver has for contexts.
func watched(pairs []Pair) (all []function) {
	for _, f := range driverFunctions {
		if len(pairs) == 0 || f.effect >= makesContext {
			all = append(all, f)
		}
	}
	for _, p := range pairs {
		all = append(all, function{
			effect: hands, kind: snapshot.Kind(p.Alloc), size: p.Size - 1, address: max(0, p.Out-1), returned: p.Out == 0,
			library: p.Library, symbols: []string{p.Alloc},
		}, function{effect: takesBack, address: p.Address - 1, library: p.Library, symbols: []string{p.Free}})
	}
	return all
}

// driverFunctions are those of libcuda. Where the driver has a function in two versions of which
// the older takes addresses of 32 bits, only the newer is: nothing calls the older on 64 bits.
// Memory of another process (cuIpcOpenMemHandle) is in the ledger of that process: here it
// counts as a buffer of no bytes. A pool (cuMemPoolCreate) has no memory of its own: what was
// allocated from it lives on when it is destroyed.
var driverFunctions = []function{
	{effect: allocates, kind: Device, size: 1, symbols: []string{"cuMemAlloc_v2"}},
	{effect: allocatesPitched, kind: Device, symbols: []string{"cuMemAllocPitch_v2"}},
	{effect: allocates, kind: Managed, size: 1, symbols: []string{"cuMemAllocManaged"}},
	{effect: allocates, kind: Ordered, size: 1, stream: 2, symbols: []string{"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}},
	{effect: allocates, kind: Ordered, size: 1, stream: 3, symbols: []string{"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}},
	{effect: allocates, kind: Pinned, size: 1, symbols: []string{"cuMemHostAlloc", "cuMemAllocHost_v2"}},
	{effect: registers, kind: Pinned, size: 1, symbols: []string{"cuMemHostRegister", "cuMemHostRegister_v2"}},
	{effect: allocatesArray, kind: Array, symbols: []string{"cuArrayCreate_v2"}},
	{effect: allocatesArray3D, kind: Array, symbols: []string{"cuArray3DCreate_v2"}},
	{effect: allocatesMipmapped, kind: Array, symbols: []string{"cuMipmappedArrayCreate"}},
	{effect: imports, kind: Imported, handle: true, symbols: []string{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"}},
	{effect: imports, kind: Imported, symbols: []string{"cuExternalMemoryGetMappedBuffer"}},
	{effect: frees, symbols: []string{
		"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFreeHost", "cuMemHostUnregister", "cuArrayDestroy", "cuMipmappedArrayDestroy",
		"cuIpcCloseMemHandle",
	}},

	{effect: creates, kind: Physical, size: 1, symbols: []string{"cuMemCreate"}},
	{effect: importsPhysical, kind: Imported, symbols: []string{"cuMemImportFromShareableHandle"}},
	{effect: retains, symbols: []string{"cuMemRetainAllocationHandle"}},
	{effect: releases, symbols: []string{"cuMemRelease"}},
	{effect: mapsMemory, size: 1, symbols: []string{"cuMemMap"}},
	{effect: unmapsMemory, size: 1, symbols: []string{"cuMemUnmap"}},

	{effect: makesContext, device: 2, symbols: []string{"cuCtxCreate", "cuCtxCreate_v2"}},
	{effect: makesContext, device: 4, symbols: []string{"cuCtxCreate_v3"}},
	{effect: makesContext, device: 3, symbols: []string{"cuCtxCreate_v4"}},
	{effect: destroysContext, symbols: []string{"cuCtxDestroy", "cuCtxDestroy_v2"}},
	{effect: pushesContext, symbols: []string{"cuCtxPushCurrent", "cuCtxPushCurrent_v2"}},
	{effect: popsContext, symbols: []string{"cuCtxPopCurrent", "cuCtxPopCurrent_v2"}},
	{effect: setsContext, symbols: []string{"cuCtxSetCurrent"}},
	{effect: retainsPrimary, device: 1, symbols: []string{"cuDevicePrimaryCtxRetain"}},
	{effect: releasesPrimary, symbols: []string{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"}},
	{effect: resetsPrimary, symbols: []string{"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"}},
}

// atEntry reports whether the effect is taken when the call begins, and put back if it
// fails: another thread may be given the address before this call has returned.
func (e effect) atEntry() bool {
	switch e {
	case releases, unmapsMemory, frees, destroysContext, releasesPrimary, resetsPrimary:
		return true
	}
	return false
}

// entryOnly reports whether the call's return is not looked at: these are called often, and
// hardly fail, or nobody knows whether they do.
func (e effect) entryOnly() bool {
	return e == pushesContext || e == popsContext || e == setsContext || e == takesBack
}

// stacked reports whether the call stack is taken.
func (e effect) stacked() bool {
	switch e {
	case allocates, hands, allocatesPitched, allocatesArray, allocatesArray3D, allocatesMipmapped, imports, registers, creates, importsPhysical:
		return true
	}
	return false
}

// described reports whether the second argument points to a description of an array.
func (e effect) described() bool {
	return e == allocatesArray || e == allocatesArray3D || e == allocatesMipmapped
}

// gives reports whether the call writes a result where an argument points.
func (f function) gives() bool {
	e := f.effect
	return e.stacked() && e != registers && !f.returned || e == retains || e == makesContext || e == retainsPrimary
}
