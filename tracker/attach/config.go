package attach

import (
	"cmp"
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Config says how to watch. The zero Config sets probes in the libcuda that a program on this
// machine would load.
type Config struct {
	// Libraries are the files of libcuda to probe. If nil, they are those that a program on this
	// machine would load. Other copies are found when a process has loaded them.
	Libraries []string
	// Functions are watched in place of the driver's functions, to see what an allocator inside a
	// library does. From the driver only contexts are reported then.
	Functions []Pair
	// Preload puts a small library in front of libcuda instead of setting probes. It needs a C
	// compiler, but no privileges, and watches only programs that are started with the environment
	// of Watcher.Environ.
	Preload bool
	// RingBytes is the size of the buffer for events not read yet, rounded up to a power of two. A call
	// takes 104 bytes, and one that allocates 160 and 8 for each frame of its stack, 16 for those of Python. 0 means 64 MiB, room for
	// some 150,000 allocations on stacks of 30 frames.
	RingBytes int
	// MaxEvents is how many events the history of a source keeps; 0 is 65,536.
	maxEvents int
	// Driver reports how much memory the devices and the processes use. Without one that
	// is not known: levels have -1, and so has Source.Before.
	Driver Driver
	// MaxStacks is how many different call stacks of a process are kept; 0 is 65,536.
	maxStacks int

	single bool // for tests: attach probes one by one, as kernels before 6.6 need it
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
	if cfg.Driver == nil {
		cfg.Driver = nobody{}
	}
	return cfg
}

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// Driver reports what the calls of a process do not show: package nvml has the figures, and
// nvml.Visible the devices as a process numbers them. An error says that a figure is unknown.
// The methods are called from any goroutine.
type Driver interface {
	// Memory returns how much of a device's memory all processes use, and its size.
	Memory(pid, ordinal int) (used, total alloc.Bytes, err error)
	// UUID returns the device's UUID, as nvidia-smi prints it.
	UUID(pid, ordinal int) (string, error)
	// Held returns the memory that a process holds on each of its devices, CUDA contexts included,
	// by the process's own ordinals.
	Held(pid int) (map[int]alloc.Bytes, error)
}

var errNoDriver = errors.New("no driver answers")

// nobody stands for the driver where Config names none: no figure is known.
type nobody struct{}

func (nobody) Memory(int, int) (used, total alloc.Bytes, err error) { return 0, 0, errNoDriver }
func (nobody) UUID(int, int) (string, error)                        { return "", errNoDriver }
func (nobody) Held(int) (map[int]alloc.Bytes, error)                { return nil, errNoDriver }

// earlier is the memory that a process used on its devices before it was watched.
type earlier struct {
	held  map[deviceID]alloc.Bytes
	known bool
}

func askHeld(d Driver, pid int) *earlier {
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
