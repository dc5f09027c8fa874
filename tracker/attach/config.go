package attach

import (
	"cmp"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Config says how to watch. The zero Config sets probes in the libcuda that a program on this
// machine would load.
type Config struct {
	// Libraries are the files of libcuda to probe. If nil, they are those that a program on this
	// machine would load. Other copies are found when a process has loaded them.
	Libraries []string
	// Functions are watched in place of the driver's functions, to see what an allocator inside a
	// library does: two functions that hand out memory and take it back, or one that is told of both.
	// From the driver only contexts are reported then. Each is written as LIBRARY:ALLOC,FREE:
	//
	//	libpool.so:pool_alloc,pool_free
	//	libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)
	//
	// The library is a file's path, or its name as "libpool.so", which stands for "libpool.so.1"
	// too. It may be the program itself. A library given by its name is found where the loader
	// would, or when a process has loaded it. The functions have their names in the library's
	// symbol table, or for C++ and Rust those in the source without parameters:
	// "arena::Pool::take".
	//
	// The parentheses say which arguments have the size in bytes and the address, counted from 1; the
	// first argument of a method is its object. "out" is an argument that points to where the function
	// writes the address. Without parentheses, the first argument of ALLOC is the size, ALLOC returns
	// the address, and the first argument of FREE is the address. With "out", ALLOC returns an error
	// code, 0 for success, unless "void" or the library's DWARF or the name of a template says that it does not: a function
	// of C++ may return nothing, or a struct, for which the caller passes a place as the first argument:
	//
	//	libc10_cuda.so:c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(size=4,out=2,void),...
	//
	// "signed" says that one function is told of both. A size below 0 means that memory is taken back:
	//
	//	libc10.so:c10::reportMemoryUsageToProfiler(size=2,address=1,signed)
	//
	// A name of Pairs, such as "ggml", stands for the functions of a well-known library; NAME=LIBRARY
	// is the same in another file. "pytorch" also watches the driver: one Source then has the blocks,
	// and another the segments that the blocks are parts of.
	Functions []string
	// Preload puts a small library in front of libcuda instead of setting probes. It needs a C
	// compiler, but no privileges, and watches only programs that Watcher.Start
	// starts, and those that they start.
	Preload bool
	// RingBytes is the size of the buffer for events not read yet, rounded up to a power of two. A call
	// takes 104 bytes, and one that allocates 160 and 8 for each frame of its stack, 16 for those of Python. 0 means 64 MiB, room for
	// some 150,000 allocations on stacks of 30 frames.
	RingBytes int
	// MaxEvents is how many events the history of a source keeps; 0 is 65,536.
	maxEvents int
	// Driver says how much memory the devices and the processes use, as nvml.Open opens it. The Watcher does
	// not close it. Without one that is not known: levels have -1, and so has Source.Before.
	Driver nvml.Source
	// MaxStacks is how many different call stacks of a process are kept; 0 is 65,536.
	maxStacks int

	pairs       []functionPair // what Functions say
	single      bool           // for tests: attach probes one by one, as kernels before 6.6 need it
	searchEvery time.Duration  // how often the processes are searched for libraries that they opened; 0 is 0.1 s
}

const (
	defaultRing   = 64 << 20
	defaultEvents = 1 << 16
	defaultStacks = 1 << 16
	minRing       = 1 << 16
)

// complete replaces unset fields by their defaults.
func (cfg Config) complete() Config {
	cfg.RingBytes = powerOfTwo(max(minRing, cmp.Or(cfg.RingBytes, defaultRing)))
	cfg.maxEvents = cmp.Or(cfg.maxEvents, defaultEvents)
	cfg.maxStacks = cmp.Or(cfg.maxStacks, defaultStacks)
	cfg.searchEvery = cmp.Or(cfg.searchEvery, 100*time.Millisecond)
	return cfg
}

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// earlier is the memory that a process used on its devices before it was watched.
type earlier struct {
	held   map[deviceID]alloc.Bytes
	known  bool
	unseen bool // nor were its calls of the driver, those that make contexts among them
}

// mayHaveContexts tells if the process may have contexts that nobody saw it make.
func (e *earlier) mayHaveContexts() bool {
	return e != nil && e.unseen && !(e.known && len(e.held) == 0)
}

func askHeld(d driver, pid int) *earlier {
	e := &earlier{held: make(map[deviceID]alloc.Bytes)}
	held, err := d.Held(pid)
	for ordinal, bytes := range held {
		e.held[deviceID(ordinal)] = bytes
	}
	e.known = err == nil
	return e
}

// device is where contexts from before must be: on the only device that was in use then.
func (e *earlier) device() deviceID {
	if e == nil || !e.known || len(e.held) != 1 {
		return unknownDevice
	}
	for d := range e.held {
		return d
	}
	return unknownDevice
}

// on returns the bytes that the process used on a device, -1 if unknown.
func (e *earlier) on(d deviceID) alloc.Bytes {
	switch {
	case e == nil:
		return 0
	case !e.known || d == hostMemory || d >= blocksOf:
		return -1
	case d != unknownDevice:
		return e.held[d]
	}
	var all alloc.Bytes
	for _, bytes := range e.held {
		all += bytes
	}
	return all
}
