package event

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Effect is what a call does to the ledger.
type Effect uint8

const (
	Allocates        Effect = iota + 1
	LibraryAllocates        // like allocates, by a library other than the driver
	LibraryFrees            // like frees, by such a library; whether it failed is unknown
	LibraryReports          // such a library reports what it did: a size above 0 is an allocation, one below 0 a free
	AllocatesPitched
	AllocatesArray
	AllocatesArray3D
	AllocatesMipmapped
	Imports   // memory of another owner; its handle is not freed by cuMemRelease
	Registers // the address is the caller's, in its first argument
	Creates   // physical memory: it lives until its handle is released and it is unmapped
	ImportsPhysical
	Retains
	Releases
	MapsMemory
	UnmapsMemory
	Frees
	MakesContext
	DestroysContext
	PushesContext
	PopsContext
	SetsContext
	RetainsPrimary
	ReleasesPrimary
	ResetsPrimary
	MakesGreen // a green context: it retains its device's primary context, and its memory is in that
	DestroysGreen
	ConvertsGreen // the context of a green context
	InitializesDriver
	LooksUpFunction
)

// Function is a function of the driver, or of another library, and where its arguments are.
type Function struct {
	Effect    Effect
	Memory    alloc.Memory // the type of memory that the function allocates
	Kind      mem.Kind     // what the memory is for, of a library's function; unknown of the driver's
	Size      int          // index of the argument with the size in bytes
	Stream    int          // index of the argument that is the stream; 0: it has none
	PerThread bool         // stream 0 is the calling thread's default stream, not the legacy one
	Device    int          // index of the argument that names the device
	Address   int          // index of the argument with the address to free, or with the pointer to which the new address is written
	Returned  bool         // the address is the result
	Void      bool         // the result is meaningless: a call that wrote no address has failed. See shared.voidResults
	Library   string       // "" is the driver
	Handle    bool         // the second argument is a CUipcMemHandle, by value
	Symbols   []string
	Host      bool   // the memory is on the host, whatever devices the process uses
	Uses      []use  // the kinds of the memory it allocates, chosen by call stack
	Note      string // the static probe to use instead: it has the function's arguments
	Without   string // watched only in files without this static probe
	Block     bool   // a block of a caching allocator, counted apart from the driver's memory
}

// KindFor returns the kind of memory that a call stack allocated.
func (f Function) KindFor(s mem.Stack) mem.Kind {
	for _, frame := range s {
		for _, u := range f.Uses {
			if strings.Contains(frame.Function, u.caller) {
				return u.kind
			}
		}
	}
	return f.Kind
}

// Watched returns the functions to watch: the driver's, or those of pairs and the driver's functions
// for contexts.
func Watched(pairs []Pair) (all []Function) {
	for _, f := range DriverFunctions {
		if len(pairs) == 0 || f.Effect >= MakesContext || slices.ContainsFunc(pairs, func(p Pair) bool { return p.cache != nil }) {
			all = append(all, f)
		}
	}
	for _, p := range pairs {
		if p.cache != nil {
			all = append(all, p.cache.functions(p.Library)...)
			continue
		}
		if p.Signed {
			all = append(all, Function{
				Effect: LibraryReports, Kind: mem.Kind(p.Alloc), Size: p.Size - 1, Address: p.Address - 1,
				Library: p.Library, Symbols: []string{p.Alloc},
			})
			continue
		}
		all = append(all, Function{
			Effect: LibraryAllocates, Kind: mem.Kind(p.Alloc), Size: p.Size - 1, Address: max(0, p.Out-1), Returned: p.Out == 0, Void: p.Void,
			Library: p.Library, Symbols: []string{p.Alloc}, Uses: p.uses, Host: p.host,
		}, Function{Effect: LibraryFrees, Address: p.Address - 1, Library: p.Library, Symbols: []string{p.Free}})
	}
	return all
}

// DriverFunctions are those of libcuda. Where the driver has a function in two versions of which
// the older takes addresses of 32 bits, only the newer is: nothing calls the older on 64 bits.
// Memory of another process (cuIpcOpenMemHandle) is in the ledger of that process: here it
// counts as a buffer of no bytes, as its size is not known. A pool (cuMemPoolCreate) has no memory of its own: what was
// allocated from it lives on when it is destroyed.
var DriverFunctions = []Function{
	{Effect: Allocates, Memory: alloc.DeviceMemory, Size: 1, Symbols: []string{"cuMemAlloc_v2"}},
	{Effect: AllocatesPitched, Memory: alloc.DeviceMemory, Symbols: []string{"cuMemAllocPitch_v2"}},
	{Effect: Allocates, Memory: alloc.ManagedMemory, Size: 1, Symbols: []string{"cuMemAllocManaged"}},
	{Effect: Allocates, Memory: alloc.PoolMemory, Size: 1, Stream: 2, Symbols: []string{"cuMemAllocAsync"}},
	{Effect: Allocates, Memory: alloc.PoolMemory, Size: 1, Stream: 2, PerThread: true, Symbols: []string{"cuMemAllocAsync_ptsz"}},
	{Effect: Allocates, Memory: alloc.PoolMemory, Size: 1, Stream: 3, Symbols: []string{"cuMemAllocFromPoolAsync"}},
	{Effect: Allocates, Memory: alloc.PoolMemory, Size: 1, Stream: 3, PerThread: true, Symbols: []string{"cuMemAllocFromPoolAsync_ptsz"}},
	{Effect: Allocates, Memory: alloc.PinnedMemory, Size: 1, Symbols: []string{"cuMemHostAlloc", "cuMemAllocHost_v2"}},
	{Effect: Registers, Memory: alloc.PinnedMemory, Size: 1, Symbols: []string{"cuMemHostRegister", "cuMemHostRegister_v2"}},
	{Effect: AllocatesArray, Memory: alloc.ArrayMemory, Symbols: []string{"cuArrayCreate_v2"}},
	{Effect: AllocatesArray3D, Memory: alloc.ArrayMemory, Symbols: []string{"cuArray3DCreate_v2"}},
	{Effect: AllocatesMipmapped, Memory: alloc.ArrayMemory, Symbols: []string{"cuMipmappedArrayCreate"}},
	{Effect: Imports, Memory: alloc.ImportedMemory, Handle: true, Symbols: []string{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"}},
	{Effect: Imports, Memory: alloc.ImportedMemory, Symbols: []string{"cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray", "cuMemPoolImportPointer"}},
	{Effect: Frees, Symbols: []string{
		"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFreeHost", "cuMemHostUnregister", "cuArrayDestroy", "cuMipmappedArrayDestroy",
		"cuIpcCloseMemHandle",
	}},

	{Effect: Creates, Memory: alloc.VirtualMemory, Size: 1, Symbols: []string{"cuMemCreate"}},
	{Effect: ImportsPhysical, Memory: alloc.ImportedMemory, Symbols: []string{"cuMemImportFromShareableHandle"}},
	{Effect: Retains, Symbols: []string{"cuMemRetainAllocationHandle"}},
	{Effect: Releases, Symbols: []string{"cuMemRelease"}},
	{Effect: MapsMemory, Size: 1, Symbols: []string{"cuMemMap"}},
	{Effect: UnmapsMemory, Size: 1, Symbols: []string{"cuMemUnmap"}},

	{Effect: MakesContext, Device: 2, Symbols: []string{"cuCtxCreate", "cuCtxCreate_v2"}},
	{Effect: MakesContext, Device: 4, Symbols: []string{"cuCtxCreate_v3"}},
	{Effect: MakesContext, Device: 3, Symbols: []string{"cuCtxCreate_v4"}},
	{Effect: DestroysContext, Symbols: []string{"cuCtxDestroy", "cuCtxDestroy_v2"}},
	{Effect: PushesContext, Symbols: []string{"cuCtxPushCurrent", "cuCtxPushCurrent_v2"}},
	{Effect: PopsContext, Symbols: []string{"cuCtxPopCurrent", "cuCtxPopCurrent_v2"}},
	{Effect: SetsContext, Symbols: []string{"cuCtxSetCurrent"}},
	{Effect: RetainsPrimary, Device: 1, Symbols: []string{"cuDevicePrimaryCtxRetain"}},
	{Effect: ReleasesPrimary, Symbols: []string{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"}},
	{Effect: ResetsPrimary, Symbols: []string{"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"}},
	{Effect: MakesGreen, Device: 2, Symbols: []string{"cuGreenCtxCreate"}},
	{Effect: DestroysGreen, Symbols: []string{"cuGreenCtxDestroy"}},
	{Effect: ConvertsGreen, Symbols: []string{"cuCtxFromGreenCtx"}},

	{Effect: InitializesDriver, Symbols: []string{"cuInit"}},
	{Effect: LooksUpFunction, Symbols: []string{"cuGetProcAddress", "cuGetProcAddress_v2"}},
}

// AppliesAtEntry reports whether the effect is applied when the call begins, and undone if it fails:
// another thread may get the address before this call has returned.
func (e Effect) AppliesAtEntry() bool {
	switch e {
	case Releases, UnmapsMemory, Frees, DestroysContext, ReleasesPrimary, ResetsPrimary, DestroysGreen:
		return true
	}
	return false
}

// EntryOnly reports whether the return of the call is ignored: these functions are called often and
// rarely fail, or have no result.
func (e Effect) EntryOnly() bool {
	return e == PushesContext || e == PopsContext || e == SetsContext || e == LibraryFrees || e == LibraryReports || e == LooksUpFunction
}

// RecordsStack reports whether the call stack is recorded.
func (e Effect) RecordsStack() bool {
	switch e {
	case Allocates, LibraryAllocates, LibraryReports, AllocatesPitched, AllocatesArray, AllocatesArray3D, AllocatesMipmapped, Imports, Registers, Creates, ImportsPhysical:
		return true
	}
	return false
}

// UsesDescriptor reports whether the second argument points to a description of an array.
func (e Effect) UsesDescriptor() bool {
	return e == AllocatesArray || e == AllocatesArray3D || e == AllocatesMipmapped
}

// WritesResult reports whether the call writes a result where an argument points.
func (f Function) WritesResult() bool {
	e := f.Effect
	return e.RecordsStack() && e != Registers && e != LibraryReports && !f.Returned || e == Retains || e == MakesContext || e == RetainsPrimary || e == MakesGreen || e == ConvertsGreen
}

// Pair is two functions of a library, one that allocates and one that frees, or one function
// that both are reported to.
type Pair struct {
	Library     string
	Alloc, Free string
	Size        int  // the argument of alloc that has the bytes
	Out         int  // the argument of alloc that points to where it writes the address; 0: it returns the address
	Void        bool // alloc returns nothing, or a struct: whether it failed shows in the address
	Address     int  // the argument of free that has the address
	Signed      bool // one function reports allocations and frees to the watched library: a negative size is a free
	uses        []use
	host        bool              // it allocates host memory only
	cache       *cachingAllocator // replaces all fields but the library
}

// ParsePair parses an element of Config.Functions. The error says which part is wrong.
func ParsePair(text string) (Pair, error) {
	p := Pair{Size: 1, Address: 1}
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
		return Pair{}, fmt.Errorf("functions %q: want LIBRARY:ALLOC,FREE, such as libpool.so:pool_alloc(size=2,out=3),pool_free(address=2), or LIBRARY:REPORT(size=2,address=1,signed), or one of %s", text, strings.Join(PairNames(), ", "))
	}
	p.Library, p.Alloc, p.Free = m[1], m[2], m[4]
	type arguments struct {
		text   string
		may    map[string]*int
		word   string
		isThat *bool
	}
	functions := []arguments{{m[3], map[string]*int{"size": &p.Size, "out": &p.Out}, "void", &p.Void}, {m[5], map[string]*int{"address": &p.Address}, "", nil}}
	if p.Free == "" {
		functions = []arguments{{m[3], map[string]*int{"size": &p.Size, "address": &p.Address}, "signed", &p.Signed}}
	}
	for _, f := range functions {
		if err := readArguments(f.text, f.may, f.word, f.isThat); err != nil {
			return Pair{}, fmt.Errorf("functions %q: %w", text, err)
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

func (p Pair) check() error {
	for _, n := range []int{p.Size, p.Address, max(1, p.Out)} {
		if n < 1 || n > maxArguments {
			return fmt.Errorf("functions of %s: argument %d: the first %d arguments can be read", p.Library, n, maxArguments)
		}
	}
	if p.Signed || p.Free == "" {
		if p.Library == "" || p.Alloc == "" || p.Free != "" || !p.Signed || p.Size == p.Address {
			return fmt.Errorf("functions of %q: %q alone: want FREE too, or (size=N,address=N,signed), with a size and an address apart", p.Library, p.Alloc)
		}
		return nil
	}
	if p.Library == "" || p.Alloc == "" || p.Free == "" || p.Alloc == p.Free || p.Out == p.Size {
		return fmt.Errorf("functions of %q: %q and %q: want a library and two functions, and a size and an address apart", p.Library, p.Alloc, p.Free)
	}
	if p.Void && p.Out == 0 {
		return fmt.Errorf("functions of %s: %s is void: want out=N, the argument where it writes the address", p.Library, p.Alloc)
	}
	return nil
}

// maxArguments is the number of arguments that are passed in registers.
const maxArguments = 6
