// Package host measures its own process: how much host memory it takes, its processor time, and its
// place among other processes. It knows nothing of devices, and keeps no history.
package host

import (
	"runtime/metrics"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Memory is the process's memory at a moment. What is not known is -1.
type Memory struct {
	Resident alloc.Bytes // resident set
	*Detail              // never nil
}

// Detail is what a Meter with detail adds. It is behind a pointer, so that a Memory without it is
// small.
type Detail struct {
	Peak alloc.Bytes // the kernel's high-water mark of the resident set
	Heap alloc.Bytes // objects on Go's heap, dead ones not collected yet included
}

// Unknown is a Memory whose values are all unknown.
var Unknown = Memory{-1, &Detail{Peak: -1, Heap: -1}}

// Meter measures the process. What it reads stays open until Close. Its methods may be called from any
// goroutine.
type Meter struct {
	// ClearRefs is the file that ResetPeak writes to on Linux. Tests put another in its place.
	ClearRefs string

	off    bool
	detail bool
	proc   proc
	recent recent
}

// Init makes the meter ready. One that is off measures nothing; one with detail also measures what takes
// longer: see Detail.
func (m *Meter) Init(off, detail bool) {
	m.ClearRefs, m.off, m.detail = "/proc/self/clear_refs", off, detail
	m.proc.init()
}

// Read returns the memory of now. Without detail it may be maxAge old.
func (m *Meter) Read() Memory {
	now := Unknown
	switch {
	case m.off:
	case m.detail:
		resident, peak := m.proc.residentAndPeak()
		now = Memory{resident, &Detail{peak, goHeap()}}
	default:
		now.Resident = m.recent.read(time.Now(), m.proc.resident)
	}
	return now
}

// CPU returns the processor time of the process so far; -1 if it is not known, or not asked for.
func (m *Meter) CPU() time.Duration {
	if m.off || !m.detail {
		return -1
	}
	return processTime()
}

// ResetPeak returns the kernel's high-water mark of the resident set, and sets it back to the present
// level. It returns 0 if it cannot.
func (m *Meter) ResetPeak() alloc.Bytes { return m.proc.resetPeak(m.ClearRefs) }

// Close closes what Read has open. Then nothing is known.
func (m *Meter) Close() { m.proc.close() }

// maxAge is the greatest age of a reading of the resident set that is used again. In so short a
// time the set changes by less than the kernel's own count lags behind.
const maxAge = 10 * time.Microsecond

// recent keeps the last reading for callers that read right after each other: most of the time of a
// short section is the kernel's work for a reading.
type recent struct {
	mu    sync.Mutex // only tried, never waited for
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
