package tracker

import (
	"io"
	"log/slog"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config configures a MemTracker. Its zero value works: the device is the first CUDA device,
// and the report is a file in the current directory. Without a GPU the device is the
// simulated GPU of package alloc/sim, and this is logged once. The environment variable
// GPUMEMTRACK_DEVICE names another device: "sim" is the simulated GPU, a number a CUDA device,
// which must then answer. Package alloc/cuda says how to build a static program, which has no
// CUDA devices.
type Config struct {
	// Device provides the memory. Close does not close it. The tracker puts a cache of its
	// own over a Device that is not a *cache.Cache. If Device is a *cache.Cache, the history has no
	// segment events, because the cache may serve others too.
	Device alloc.Device
	// NoCache uses a plain Device without a cache.
	NoCache bool

	// Dir is the directory of the report's file; New makes it if it is missing. If Dir is empty,
	// the file is in the current directory, unless Report is set: then there is no file. The first
	// Track logs the file's name, unless Report shows the report already.
	Dir string
	// MaxReportBytes limits the size of the report's files. When the file reaches half of it, it is
	// renamed to ...-older-gpu_mem_track.txt, which replaces the previous one, and the report
	// continues in a new file. A block that is larger loses its last changes. 0 means 64 MiB; less
	// than 8 KiB means 8 KiB.
	MaxReportBytes alloc.Bytes
	// Report receives the report's blocks, each in one Write. Several trackers may share it;
	// its Write is called by one of them at a time. Write is called without a lock and may
	// call anything in this package, but must not wait for another goroutine's Track. If Write calls
	// Track, that block follows when Write has returned, possibly together with others. With
	// io.Discard and no Dir there is no report.
	Report io.Writer

	// StackDepth is the number of frames to keep of an allocation's call stack, at most 128; 0 means 32. New refuses
	// other numbers.
	StackDepth int
	// MaxStacks limits how many distinct call stacks are kept complete. From later stacks only the
	// frames up to the line of the user's code are kept, followed by a frame that says so. 0 means
	// 65,536 stacks, which take at most 70 MB: 200 bytes each, and 20 for each frame.
	MaxStacks int
	// Libraries are import paths, such as "example.com/train/tensor". Their functions, and those of
	// the packages below them, are skipped when the tracker looks for the line of code that
	// allocated a buffer; "example.com/train/..." is the same as "example.com/train". The Go
	// runtime, packages of this module, gorgonia, GoMLX and go-xla, yzma and onnxruntime_go are
	// always skipped.
	Libraries []string
	// MaxEvents limits the history of allocations and frees: older events are dropped. 0 means
	// 65,536 events, which take 3 MiB. A negative number means no history.
	MaxEvents int
	// MaxMarks bounds the marks that a Dump has. 0 means 128 marks; a negative number, none.
	MaxMarks int

	// FindUnreachable looks for unreachable buffers: those that the program can no longer reach, as Go's collector finds, and that were not
	// freed. That is a definite leak, because the program can never free them. They are marked in Snapshots and Leaks, the
	// history has an event for each, and the first is logged. It takes more Go allocations and a cleanup for each Buffer
	// (BenchmarkAllocFreeFindUnreachable measures it).
	FindUnreachable bool
	// FreeUnreachable finds unreachable buffers too, and then frees their memory. The program must keep a Buffer reachable
	// (runtime.KeepAlive) while the device uses the address that Ptr returned.
	FreeUnreachable bool

	// FindLateWrites is for debugging: it finds work that writes to memory after its Free, such as
	// a kernel on another stream that no RecordStream or FreeOn named. The tracker fills the memory
	// of a freed buffer with a pattern. Before that memory is handed out again, and at Close, it
	// waits for all streams and compares. What it finds goes to the Logger, and LateWrites and
	// Close return it with the lines of code. Memory that goes back to the driver earlier is not
	// compared. Each Alloc and Free waits for the device. The tracker needs a cache of its own,
	// over a device that can fill and copy its memory and wait, as CUDA devices can, and the
	// simulated one with sim.Config.Backed; New refuses others.
	FindLateWrites bool

	// OOMDir is a directory for dumps: one is written there before an Alloc returns an
	// *OutOfMemoryError, the first MaxDumps times. If it is empty, none is written.
	OOMDir string
	// MaxDumps bounds the number of dumps of this process in a directory; older ones are
	// deleted. MaxDumpBytes bounds each dump's size. 0 means 8 dumps and 16 MiB. See DumpFile.
	MaxDumps     int
	MaxDumpBytes alloc.Bytes
	// OtherProcesses returns how much of the device's memory other processes use, as
	// nvml.OthersMemory does. The tracker calls it when the device is full. If it is nil, the
	// amount is unknown.
	OtherProcesses func() (alloc.Bytes, error)

	// Sections says what a Section measures in addition to the ledger.
	Sections SectionConfig

	// Origin describes the process, for snapshots. Fields that are not set are looked up; type
	// snapshot.Origin says how ranks are recognised.
	Origin snapshot.Origin

	// Clock returns the time; nil means time.Now. It must be safe for concurrent use.
	Clock func() time.Time
	// Logger gets what a program should know and no call can return: one line each when the simulated
	// GPU takes the place of a missing one, when the report cannot be written, when the first buffer
	// becomes unreachable, when sections are not ended, and when the tracker is used after Close; a line for each late write, and
	// for memory that could not be given back. nil means slog.Default().
	Logger *slog.Logger
}

const defaultMaxEvents = 1 << 16

// SectionConfig says what a Section measures. The zero value measures what is cheap and does not
// disturb the program: the device's memory and time, and the process's resident set at both
// ends.
type SectionConfig struct {
	// Host says what is measured of the process. "" is its resident set, up to 10 µs old. "detail" adds
	// Go's heap, the peak of the resident set and the processor time, which takes several times as long
	// (BenchmarkSection). "peak" also resets the kernel's peak of the resident set (VmHWM) at each begin
	// and end: the section's host peak is then exact, and other readers of that peak get wrong values;
	// Linux only. "none" measures nothing, which saves most of the time of a section.
	Host string
	// GCBefore runs the Go collector before each measurement, outside of the measured time. Host
	// memory then has no garbage in it, and finalizers and cleanups have freed their buffers. It
	// also hides how long such buffers really live. Unless Host is "none", it includes "detail".
	GCBefore bool
	// NoDeviceTime measures no time of the device.
	NoDeviceTime bool
}

// Kind is the purpose of a buffer, such as Parameter. A program can have kinds of its own:
//
//	const KVCache tracker.Kind = "KVCache"
//
// See [mem.Kind].
type Kind = mem.Kind

// The kinds. A buffer without a kind is Unspecified, which prints as "Tensor".
const (
	Unspecified    Kind = ""
	Parameter      Kind = "Parameter"
	Gradient       Kind = "Gradient"
	OptimizerState Kind = "OptimizerState"
	Activation     Kind = "Activation"
	Input          Kind = "Input"
	Temporary      Kind = "Temporary"
)
