package attach

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// effect is what a call does to the ledger.
type effect uint8

const (
	allocates        effect = iota + 1
	libraryAllocates        // like allocates, by a library other than the driver
	libraryFrees            // like frees, by such a library; whether it failed is unknown
	libraryReports          // such a library reports what it did: a size above 0 is an allocation, one below 0 a free
	allocatesPitched
	allocatesArray
	allocatesArray3D
	allocatesMipmapped
	imports   // memory of another owner; its handle is not freed by cuMemRelease
	registers // the address is the caller's, in its first argument
	creates   // physical memory: it lives until its handle is released and it is unmapped
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
	memory   alloc.Memory // the type of memory that the function allocates
	kind     mem.Kind     // what the memory is for, of a library's function; unknown of the driver's
	size     int          // index of the argument with the size in bytes
	stream   int          // 0: it has none
	device   int          // index of the argument that names the device
	address  int          // index of the argument with the address to free, or with the pointer to which the new address is written
	returned bool         // the address is the result
	void     bool         // the result is meaningless: a call that wrote no address has failed. See shared.voidResults
	library  string       // "" is the driver
	handle   bool         // the second argument is a CUipcMemHandle, by value
	symbols  []string
	host     bool   // the memory is on the host, whatever devices the process uses
	uses     []use  // the kinds of the memory it allocates, chosen by call stack
	note     string // the static probe to use instead: it has the function's arguments
	without  string // watched only in files without this static probe
	block    bool   // a block of a caching allocator, counted apart from the driver's memory
}

// kindFor returns the kind of memory that a call stack allocated.
func (f function) kindFor(s mem.Stack) mem.Kind {
	for _, frame := range s {
		for _, u := range f.uses {
			if strings.Contains(frame.Function, u.caller) {
				return u.kind
			}
		}
	}
	return f.kind
}

// watched returns the functions to watch: the driver's, or those of pairs and the driver's functions
// for contexts.
func watched(pairs []functionPair) (all []function) {
	for _, f := range driverFunctions {
		if len(pairs) == 0 || f.effect >= makesContext || slices.ContainsFunc(pairs, func(p functionPair) bool { return p.cache != nil }) {
			all = append(all, f)
		}
	}
	for _, p := range pairs {
		if p.cache != nil {
			all = append(all, p.cache.functions(p.library)...)
			continue
		}
		if p.signed {
			all = append(all, function{
				effect: libraryReports, kind: mem.Kind(p.alloc), size: p.size - 1, address: p.address - 1,
				library: p.library, symbols: []string{p.alloc},
			})
			continue
		}
		all = append(all, function{
			effect: libraryAllocates, kind: mem.Kind(p.alloc), size: p.size - 1, address: max(0, p.out-1), returned: p.out == 0, void: p.void,
			library: p.library, symbols: []string{p.alloc}, uses: p.uses, host: p.host,
		}, function{effect: libraryFrees, address: p.address - 1, library: p.library, symbols: []string{p.free}})
	}
	return all
}

// driverFunctions are those of libcuda. Where the driver has a function in two versions of which
// the older takes addresses of 32 bits, only the newer is: nothing calls the older on 64 bits.
// Memory of another process (cuIpcOpenMemHandle) is in the ledger of that process: here it
// counts as a buffer of no bytes, as its size is not known. A pool (cuMemPoolCreate) has no memory of its own: what was
// allocated from it lives on when it is destroyed.
var driverFunctions = []function{
	{effect: allocates, memory: alloc.DeviceMemory, size: 1, symbols: []string{"cuMemAlloc_v2"}},
	{effect: allocatesPitched, memory: alloc.DeviceMemory, symbols: []string{"cuMemAllocPitch_v2"}},
	{effect: allocates, memory: alloc.ManagedMemory, size: 1, symbols: []string{"cuMemAllocManaged"}},
	{effect: allocates, memory: alloc.PoolMemory, size: 1, stream: 2, symbols: []string{"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}},
	{effect: allocates, memory: alloc.PoolMemory, size: 1, stream: 3, symbols: []string{"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}},
	{effect: allocates, memory: alloc.PinnedMemory, size: 1, symbols: []string{"cuMemHostAlloc", "cuMemAllocHost_v2"}},
	{effect: registers, memory: alloc.PinnedMemory, size: 1, symbols: []string{"cuMemHostRegister", "cuMemHostRegister_v2"}},
	{effect: allocatesArray, memory: alloc.ArrayMemory, symbols: []string{"cuArrayCreate_v2"}},
	{effect: allocatesArray3D, memory: alloc.ArrayMemory, symbols: []string{"cuArray3DCreate_v2"}},
	{effect: allocatesMipmapped, memory: alloc.ArrayMemory, symbols: []string{"cuMipmappedArrayCreate"}},
	{effect: imports, memory: alloc.ImportedMemory, handle: true, symbols: []string{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"}},
	{effect: imports, memory: alloc.ImportedMemory, symbols: []string{"cuExternalMemoryGetMappedBuffer"}},
	{effect: frees, symbols: []string{
		"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFreeHost", "cuMemHostUnregister", "cuArrayDestroy", "cuMipmappedArrayDestroy",
		"cuIpcCloseMemHandle",
	}},

	{effect: creates, memory: alloc.VirtualMemory, size: 1, symbols: []string{"cuMemCreate"}},
	{effect: importsPhysical, memory: alloc.ImportedMemory, symbols: []string{"cuMemImportFromShareableHandle"}},
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

// appliesAtEntry reports whether the effect is applied when the call begins, and undone if it fails:
// another thread may get the address before this call has returned.
func (e effect) appliesAtEntry() bool {
	switch e {
	case releases, unmapsMemory, frees, destroysContext, releasesPrimary, resetsPrimary:
		return true
	}
	return false
}

// entryOnly reports whether the return of the call is ignored: these functions are called often and
// rarely fail, or have no result.
func (e effect) entryOnly() bool {
	return e == pushesContext || e == popsContext || e == setsContext || e == libraryFrees
}

// recordsStack reports whether the call stack is recorded.
func (e effect) recordsStack() bool {
	switch e {
	case allocates, libraryAllocates, libraryReports, allocatesPitched, allocatesArray, allocatesArray3D, allocatesMipmapped, imports, registers, creates, importsPhysical:
		return true
	}
	return false
}

// usesDescriptor reports whether the second argument points to a description of an array.
func (e effect) usesDescriptor() bool {
	return e == allocatesArray || e == allocatesArray3D || e == allocatesMipmapped
}

// writesResult reports whether the call writes a result where an argument points.
func (f function) writesResult() bool {
	e := f.effect
	return e.recordsStack() && e != registers && e != libraryReports && !f.returned || e == retains || e == makesContext || e == retainsPrimary
}

// functionPair is two functions of a library, one that allocates and one that frees, or one function
// that both are reported to.
type functionPair struct {
	library     string
	alloc, free string
	size        int  // the argument of alloc that has the bytes
	out         int  // the argument of alloc that points to where it writes the address; 0: it returns the address
	void        bool // alloc returns nothing, or a struct: whether it failed shows in the address
	address     int  // the argument of free that has the address
	signed      bool // one function reports allocations and frees to the watched library: a negative size is a free
	uses        []use
	host        bool              // it allocates host memory only
	cache       *cachingAllocator // replaces all fields but the library
}

// parsePair parses an element of Config.Functions. The error says which part is wrong.
func parsePair(text string) (functionPair, error) {
	p := functionPair{size: 1, address: 1}
	name, library, elsewhere := strings.Cut(text, "=")
	if known, ok := presets[name]; ok {
		text, p.uses, p.cache, p.host = known.pair, known.uses, known.cache, known.host
		if elsewhere {
			_, functions, _ := strings.Cut(text, ":")
			text = library + ":" + functions
		}
	}
	m := pairText.FindStringSubmatch(text)
	if m == nil {
		return functionPair{}, fmt.Errorf("functions %q: want LIBRARY:ALLOC,FREE, such as libpool.so:pool_alloc(size=2,out=3),pool_free(address=2), or LIBRARY:REPORT(size=2,address=1,signed), or one of %s", text, strings.Join(Pairs(), ", "))
	}
	p.library, p.alloc, p.free = m[1], m[2], m[4]
	type arguments struct {
		text   string
		may    map[string]*int
		word   string
		isThat *bool
	}
	functions := []arguments{{m[3], map[string]*int{"size": &p.size, "out": &p.out}, "void", &p.void}, {m[5], map[string]*int{"address": &p.address}, "", nil}}
	if p.free == "" {
		functions = []arguments{{m[3], map[string]*int{"size": &p.size, "address": &p.address}, "signed", &p.signed}}
	}
	for _, f := range functions {
		if err := readArguments(f.text, f.may, f.word, f.isThat); err != nil {
			return functionPair{}, fmt.Errorf("functions %q: %w", text, err)
		}
	}
	return p, p.check()
}

var pairText = regexp.MustCompile(`^([^:,()]+):([^,()]+)(?:\(([^()]*)\))?(?:,([^,()]+)(?:\(([^()]*)\))?)?$`)

// readArguments reads a list such as size=2,out=3,void.
func readArguments(text string, may map[string]*int, word string, isThat *bool) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == word {
			*isThat = true
			continue
		}
		name, number, _ := strings.Cut(strings.TrimSpace(item), "=")
		to, ok := may[name]
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 1 {
			return fmt.Errorf("%q: want size=N, out=N and void of the function that allocates, address=N of the one that frees, "+
				"or size=N, address=N and signed of one that is told of both, N from 1", item)
		}
		*to = n
	}
	return nil
}

func (p functionPair) check() error {
	for _, n := range []int{p.size, p.address, max(1, p.out)} {
		if n < 1 || n > maxArguments {
			return fmt.Errorf("functions of %s: argument %d: the first %d arguments can be read", p.library, n, maxArguments)
		}
	}
	if p.signed || p.free == "" {
		if p.library == "" || p.alloc == "" || p.free != "" || !p.signed || p.size == p.address {
			return fmt.Errorf("functions of %q: %q alone: want FREE too, or (size=N,address=N,signed), with a size and an address apart", p.library, p.alloc)
		}
		return nil
	}
	if p.library == "" || p.alloc == "" || p.free == "" || p.alloc == p.free || p.out == p.size {
		return fmt.Errorf("functions of %q: %q and %q: want a library and two functions, and a size and an address apart", p.library, p.alloc, p.free)
	}
	if p.void && p.out == 0 {
		return fmt.Errorf("functions of %s: %s is void: want out=N, the argument where it writes the address", p.library, p.alloc)
	}
	return nil
}

// maxArguments is the number of arguments that are passed in registers.
const maxArguments = 6
