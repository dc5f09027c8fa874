package tracker

import (
	"runtime/metrics"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
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
