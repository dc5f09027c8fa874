package tracker

import (
	"runtime/metrics"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// hostMemory is the process's memory at a moment. What is not known is -1.
type hostMemory struct {
	resident alloc.Bytes // resident set
	peak     alloc.Bytes // the kernel's high-water mark of it
	heap     alloc.Bytes // objects on Go's heap, dead ones not collected yet included
}

var unknownHost = hostMemory{resident: -1, peak: -1, heap: -1}

// hostMeter measures the process, as far as a SectionConfig asks for it. What it
// reads stays open until close.
type hostMeter struct {
	off    bool
	detail bool
	proc   proc
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
		now.resident, now.peak = h.proc.residentAndPeak()
		now.heap = goHeap()
	default:
		now.resident = h.proc.resident()
	}
	return now
}

func goHeap() alloc.Bytes {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return -1
	}
	return alloc.Bytes(sample[0].Value.Uint64())
}
