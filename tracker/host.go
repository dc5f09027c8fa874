package tracker

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// hostMemory is the process's memory at a moment. What is not known is -1.
type hostMemory struct {
	resident    alloc.Bytes // resident set
	*hostDetail             // never nil
}

// hostDetail is what HostDetail adds.
type hostDetail struct {
	peak alloc.Bytes // the kernel's high-water mark of the resident set
	heap alloc.Bytes // objects on Go's heap, dead ones not collected yet included
}

var unknownHost = hostMemory{-1, &hostDetail{peak: -1, heap: -1}}

// hostMeter measures the process, as far as a SectionConfig asks for it. What it
// reads stays open until close.
type hostMeter struct {
	off    bool
	detail bool
	proc   proc
	recent recent
}

func (h *hostMeter) init(cfg SectionConfig) {
	h.off = cfg.NoHost
	h.detail = cfg.HostDetail || cfg.GCBefore || cfg.ResetHostPeak
	h.proc.init()
}

func (h *hostMeter) read() hostMemory {
	now := unknownHost
	switch {
	case h.off:
	case h.detail:
		resident, peak := h.proc.residentAndPeak()
		now = hostMemory{resident, &hostDetail{peak, goHeap()}}
	default:
		now.resident = h.recent.read(time.Now(), h.proc.resident)
	}
	return now
}

// cpu returns the processor time of the process so far; -1 if it is not known, or not asked for.
func (h *hostMeter) cpu() time.Duration {
	if h.off || !h.detail {
		return -1
	}
	return processTime()
}

// maxAge is how old a reading of the resident set may be that a default section uses: at the
// speed of memory, the set changes by less in it than the kernel's own count lags behind.
const maxAge = 10 * time.Microsecond

// recent keeps the last reading, for sections that begin or end right after each other:
// the kernel takes most of a short section's time.
type recent struct {
	mu    sync.Mutex // nobody waits for it
	at    time.Time  // before the reading
	bytes alloc.Bytes
}

// read returns the last reading if it is recent, and else reads.
func (r *recent) read(now time.Time, resident func() alloc.Bytes) alloc.Bytes {
	if !r.mu.TryLock() {
		return resident()
	}
	defer r.mu.Unlock()
	if r.at.IsZero() || now.Sub(r.at) > maxAge {
		r.at, r.bytes = now, resident()
	}
	return r.bytes
}

func goHeap() alloc.Bytes {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return -1
	}
	return alloc.Bytes(sample[0].Value.Uint64())
}

// launchers are the variables by which a launcher numbers the processes that it
// starts. One that may run inside another comes before it. A batch script of Slurm
// has a SLURM_PROCID too, but only srun tells how many its step has.
var launchers = []struct{ rank, worldSize string }{
	{"RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
	{"HOROVOD_RANK", "HOROVOD_SIZE"},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
}

// fillOrigin looks up what is not known of this process. Rank and world size go
// together: one that is told is not completed by a launcher's.
func fillOrigin(o snapshot.Origin) snapshot.Origin {
	host, _ := os.Hostname()
	o.Host = cmp.Or(o.Host, host)
	o.PID = cmp.Or(o.PID, os.Getpid())
	if exe, err := os.Executable(); err == nil {
		o.Program = cmp.Or(o.Program, filepath.Base(exe))
	}
	if o.Rank == nil && o.WorldSize == 0 {
		o.Rank, o.WorldSize = launchedRank()
	}
	return o
}

func launchedRank() (rank *int, worldSize int) {
	for _, l := range launchers {
		r, ok := numberIn(l.rank)
		if size, known := numberIn(l.worldSize); ok && known && r < size {
			return &r, size
		}
	}
	if r, ok := numberIn("RANK"); ok {
		return &r, 0
	}
	return nil, 0
}

// numberIn returns the number that an environment variable holds.
func numberIn(variable string) (int, bool) {
	n, err := strconv.ParseUint(os.Getenv(variable), 10, 31)
	return int(n), err == nil
}
