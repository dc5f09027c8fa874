package attach

import "cmp"

// Config says how to watch. The zero Config is a good one.
type Config struct {
	// Libraries are the files of libcuda to probe. Nil is those that a program on this
	// machine would find; others are found in what the processes have loaded.
	Libraries []string
	// Functions are watched in place of the driver's, for what an allocator inside a library
	// does. The driver's then report only contexts.
	Functions []Pair
	// Preload puts a small library in front of libcuda instead of setting probes. It needs no
	// rights and a C compiler, and watches only what is started with Watcher.Environ.
	Preload bool
	// RingBytes is the room for events that were not read yet; it is rounded up to a power
	// of two. An event with its call stack takes 664 bytes. 0 is 32 MiB.
	RingBytes int
	// MaxEvents is how many events the history of a source keeps; 0 is 65,536.
	MaxEvents int
	// Driver reports how much memory the devices and the processes use. Without one that
	// is not known: levels have -1, and so has Source.Before.
	Driver Driver
	// MaxStacks is how many different call stacks of a process are kept; 0 is 65,536.
	MaxStacks int

	single bool // one probe at a time, as kernels before 6.6 need it: for tests
}

const (
	defaultRing   = 32 << 20
	defaultEvents = 1 << 16
	defaultStacks = 1 << 16
	minRing       = 1 << 16
)

// complete puts in what is not set.
func (cfg Config) complete() Config {
	cfg.RingBytes = powerOfTwo(max(minRing, cmp.Or(cfg.RingBytes, defaultRing)))
	cfg.MaxEvents = cmp.Or(cfg.MaxEvents, defaultEvents)
	cfg.MaxStacks = cmp.Or(cfg.MaxStacks, defaultStacks)
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
