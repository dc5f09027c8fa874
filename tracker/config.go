package tracker

import (
	"io"
	"log/slog"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Config says how a MemTracker works. Its zero value works: the device is the first CUDA
// device, and the report is a file in the current directory. Where there is no GPU to use,
// the device is the simulated GPU of package alloc/sim, which is logged once. The
// environment variable GPUMEMTRACK_DEVICE names another device: "sim" is the simulated GPU, a
// number is that CUDA device, which must then answer. Package alloc/cuda says how to build
// a static program, which has no CUDA devices.
type Config struct {
	// Device gives the memory. It stays the caller's: Close does not close it.
	// A Device that is not an *alloc.Cache gets one, which the tracker owns; of
	// a cache of the caller's own, the history has no segment events.
	Device alloc.Device
	// NoCache leaves out the cache that a plain Device would get.
	NoCache bool

	// Dir is the directory of the report's file, which must exist. If it is empty,
	// the file is made in the current directory, unless Report is set: then there
	// is none.
	Dir string
	// MaxReportBytes bounds the report's file: when it has reached half of that, it is
	// renamed to ...-older-gpu_mem_track.txt, in place of the one before, and the
	// report goes on in a new file, which says so. Of a single block that takes more, the
	// last lines are left out. 0 means 64 MiB; less than 8 KiB means 8 KiB.
	MaxReportBytes alloc.Bytes
	// Report receives the report's blocks, each in one Write. Several trackers
	// may share it; no two call it at once. Write is called with no lock held and may
	// call anything of this package, but must not wait for another goroutine's Track.
	// The block of a Track that Write itself calls follows when Write has
	// returned, possibly with others in one Write. A Report that is io.Discard, with
	// no Dir, makes no report.
	Report io.Writer

	// StackDepth is how many frames of an allocation's call stack are kept; 0
	// means 32.
	StackDepth int
	// MaxStacks bounds the distinct call stacks that are kept whole. Of those that
	// come later, the frames up to the line of the user's code are kept, and one
	// that says so. 0 means 65,536 stacks, which take 70 MB at most: 200 bytes each,
	// and 20 for each frame.
	MaxStacks int
	// Libraries are import paths, such as "example.com/train/tensor", whose
	// functions are passed over where a report names the line of code that
	// allocated a buffer. The Go runtime, packages of this module and
	// gorgonia's always are.
	Libraries []string
	// MaxEvents bounds the history of allocations and frees: older events are
	// forgotten. 0 means 65,536 events, which take 3 MiB; a negative number, none.
	MaxEvents int
	// MaxMarks bounds what Marks returns. 0 means 128 marks; a negative number, none.
	MaxMarks int
	// GCOnClearCache makes ClearCache run the Go collector first, so that
	// buffers that only finalizers and cleanups free are gone as well.
	GCOnClearCache bool

	// Warmup is how many marks at the start Growth leaves out, while a program
	// loads and fills its caches. 0 means 3; a negative number, none.
	Warmup int
	// Lost says whether buffers that the program lost are looked for.
	Lost LostPolicy

	// FindLateWrites, for debugging, finds work that writes to memory after its Free: a kernel that runs
	// on another stream, of which RecordStream and FreeOn were not told. The memory of a freed buffer
	// is filled with a pattern. When it is handed out again, and at Close, the tracker waits for
	// all streams and compares. The Logger is told of what it finds, LateWrites and Close return
	// it, with the lines of code. What is given back to the driver before is not compared.
	// It makes each Alloc and Free wait for the device. It needs a cache of the tracker's own, over
	// a device that is an alloc.Filler, an alloc.Copier and an alloc.Synchronizer, as CUDA devices and the
	// simulated one with sim.Config.Backed are; New refuses others.
	FindLateWrites bool

	// OOMDir is a directory for dumps: one is written there before an Alloc
	// returns an *OutOfMemoryError, the first MaxDumps times. "" is none.
	OOMDir string
	// MaxDumps and MaxDumpBytes bound the dumps of this process in a directory: the
	// number of files, older ones being deleted, and the bytes of each. 0 means 8 and
	// 16 MiB. See DumpFile.
	MaxDumps     int
	MaxDumpBytes alloc.Bytes
	// OtherProcesses tells how much of the device's memory other processes hold,
	// as nvml.OthersMemory does. It is asked when the device is full; nil is not known.
	OtherProcesses func() (alloc.Bytes, error)

	// Sections says what a Section measures beside the ledger.
	Sections SectionConfig

	// Origin is the process, for snapshots. What it leaves out is looked up: see
	// Origin, which tells how ranks are recognised.
	Origin Origin

	// Clock tells the time; nil means time.Now. It must be safe for concurrent use.
	Clock func() time.Time
	// Logger gets what must not pass in silence: one line that a report cannot
	// be written, one that a buffer was lost, one that the tracker is used after
	// Close. nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultMaxEvents = 1 << 16
	defaultWarmup    = 3
)

// LostPolicy says what becomes of a Buffer that the program can no longer reach
// though its memory was never freed, as the Go collector finds: a leak for certain,
// since nobody can free it any more.
type LostPolicy uint8

// The policies. To look for lost buffers costs a second Go allocation and a
// cleanup for each Buffer: an Alloc and its Free take two to three times as long
// (BenchmarkAllocFreeFindLost).
const (
	// IgnoreLost does not look for lost buffers.
	IgnoreLost LostPolicy = iota
	// ReportLost marks them in Snapshots and Leaks, tells the history, and has the
	// Logger tell of the first.
	ReportLost
	// FreeLost does what ReportLost does, and then frees the memory. A
	// program must keep a Buffer reachable (runtime.KeepAlive) for as long as
	// the device works on the address that Ptr gave.
	FreeLost
)

// SectionConfig says what a Section measures. The zero value is what costs little
// and does not disturb the program: the device's memory and time, and the
// process's resident set at both ends.
type SectionConfig struct {
	// HostDetail measures Go's heap and the peak of the resident set as well, which
	// makes a section take about five times as long. GCBefore and ResetHostPeak
	// include it.
	HostDetail bool
	// GCBefore runs the Go collector before each measurement, outside of the
	// time that is measured: host memory then has no garbage in it, and buffers
	// that only finalizers and cleanups free are gone. It also hides how long
	// such buffers really live.
	GCBefore bool
	// ResetHostPeak sets the kernel's high-water mark of the resident set (VmHWM)
	// back at each begin and end, which makes the section's host peak
	// exact, and the mark useless for anybody else. Linux only.
	ResetHostPeak bool
	// NoHost and NoDeviceTime leave out what they name. To measure the host takes
	// most of the time of a section (BenchmarkSection).
	NoHost       bool
	NoDeviceTime bool
}
