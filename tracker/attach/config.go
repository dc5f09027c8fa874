package attach

import (
	"cmp"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// Config says how to watch. The zero Config sets probes in the libcuda that a program on this
// machine would load.
type Config struct {
	// Libraries are the files of libcuda to probe. If nil, they are those that a program on this
	// machine would load. Other copies are found when a process has loaded them.
	Libraries []string
	// Functions are watched in place of the driver's functions, to see what an allocator inside a
	// library does: one function that allocates and one that frees, or one function that both are reported to.
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
	// code, 0 for success, unless "void", the library's DWARF or the mangled name of a template says that
	// it returns nothing, or a struct, for which C++ passes a hidden pointer as the first argument:
	//
	//	libc10_cuda.so:c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(size=4,out=2,void),...
	//
	// An exception may pass through a function of C++ or Rust, which does not disturb the program. New, or Warnings if the library
	// is found later, refuses ALLOC if it ends by calling a function of another library, or by a pointer.
	//
	// "signed" means that one function reports both. A size below 0 is a free:
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
	// RingBufferBytes is the size of the ring buffer of unread events, rounded up to a power of two. A call
	// takes 104 bytes; an allocation takes 160, and 8 for each native frame of its stack, 16 for each
	// frame of Python. 0 means 64 MiB: some 150,000 allocations on stacks of 30 frames. The mapping counts
	// twice in the process's resident memory, since it is mapped twice in a row.
	RingBufferBytes int
	// maxEvents is how many events the history of a source keeps; 0 is 65,536.
	maxEvents int
	// Driver says how much memory the devices and the processes use, as nvml.Open opens it. The Watcher does
	// not close it. Without it these values are -1, in levels and as Source.PriorBytes.
	Driver nvml.Source
	// maxStacks is how many different call stacks of a process are kept; 0 is 262,144.
	maxStacks int
	// maxEnded is how many processes that have ended are kept, where every process is watched; 0 is 256.
	maxEnded int

	pairs       []event.Pair                    // parsed from Functions
	shimWaitMS  int                             // for tests: how long a call waits for a watcher that does not read; 0 is two seconds. A busy machine may stop the watcher for longer
	oldest      int                             // for tests: how probes are attached on older kernels, see probes.New
	searchEvery time.Duration                   // how often the processes are searched for libraries that they opened; 0 is 0.1 s
	wrap        func(event.Source) event.Source // for tests
}

const (
	defaultRing   = 64 << 20
	defaultEvents = 1 << 16
	defaultStacks = 1 << 18
	defaultEnded  = 256
	minRing       = 1 << 16
)

// complete replaces unset fields by their defaults.
func (cfg Config) complete() Config {
	cfg.RingBufferBytes = powerOfTwo(max(minRing, cmp.Or(cfg.RingBufferBytes, defaultRing)))
	cfg.maxEvents = cmp.Or(cfg.maxEvents, defaultEvents)
	cfg.maxStacks = cmp.Or(cfg.maxStacks, defaultStacks)
	cfg.maxEnded = cmp.Or(cfg.maxEnded, defaultEnded)
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

// Pairs returns the names of pairs that Config.Functions may have.
func Pairs() []string { return event.PairNames() }
