package replay

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Levels are the peaks of a run, and what it asked of the driver.
type Levels struct {
	PeakRequested alloc.Bytes `json:"peak_requested_bytes"` // by the program
	PeakAllocated alloc.Bytes `json:"peak_allocated_bytes"` // in blocks, after rounding
	PeakReserved  alloc.Bytes `json:"peak_reserved_bytes"`  // in segments
	DriverAllocs  int64       `json:"driver_allocs"`        // of segments, or parts that were mapped
	DriverFrees   int64       `json:"driver_frees"`
	Retries       int64       `json:"retries"` // requests for which the cache had to be emptied; -1 of a recording that does not tell
	OOMs          int64       `json:"ooms"`    // requests that failed

	requested, allocated, reserved alloc.Bytes
}

// at sets the levels.
func (l *Levels) at(reserved, requested, allocated alloc.Bytes) {
	l.reserved, l.requested, l.allocated = reserved, requested, allocated
}

// add counts a buffer in or out; peak follows, when what belongs together is done. The
// blocks of foreign buffers are not the allocator's.
func (l *Levels) add(requested, allocated alloc.Bytes, foreign bool) {
	l.requested += requested
	if !foreign {
		l.allocated += allocated
	}
}

func (l *Levels) reserve(change alloc.Bytes) { l.reserved += change }

func (l *Levels) peak() {
	l.PeakRequested = max(l.PeakRequested, l.requested)
	l.PeakAllocated = max(l.PeakAllocated, l.allocated)
	l.PeakReserved = max(l.PeakReserved, l.reserved)
}
