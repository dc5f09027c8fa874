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

func readHost() hostMemory {
	h := hostMemory{heap: -1}
	h.resident, h.peak = residentSet()
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	if sample[0].Value.Kind() == metrics.KindUint64 {
		h.heap = alloc.Bytes(sample[0].Value.Uint64())
	}
	return h
}
