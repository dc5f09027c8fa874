package tracker

import (
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// SectionData is what a Section measured.
type SectionData struct {
	Path  string    `json:"path"`
	Site  Frame     `json:"site"` // who opened it
	Start time.Time `json:"start"`
	// Time is the host's. DeviceTime is by the device's clock, from when it came to
	// the section's beginning until it had done what was queued by the end, busy or
	// waiting; -1 if the device cannot tell.
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"`

	// GPU is the level of the tracker's live buffers, in requested bytes,
	// whichever goroutine allocated them. Its peak is exact.
	GPU MemoryUse `json:"gpu"`
	// RSS is the process's resident set, Heap the objects on Go's heap, dead ones
	// that are not collected yet included.
	RSS  MemoryUse `json:"rss"`
	Heap MemoryUse `json:"heap"`

	// Allocated and Freed are what the section itself and its parts did: of what
	// runs side by side, nothing is in them. Kept is their difference, and
	// OwnPeak the highest that it was.
	Allocated Tally       `json:"allocated"`
	Freed     Tally       `json:"freed"`
	OwnPeak   alloc.Bytes `json:"own_peak_bytes"`
}

// Kept returns what the section allocated, less what it freed; it is negative
// if it freed what was there before it.
func (d SectionData) Kept() Tally { return d.Allocated.Sub(d.Freed) }

// MemoryUse is a level of memory over a stretch of time. What is not known is -1.
type MemoryUse struct {
	Before alloc.Bytes `json:"before_bytes"`
	Used   alloc.Bytes `json:"used_bytes"` // at the end
	Peak   alloc.Bytes `json:"peak_bytes"`
	// PeakAtMost says that the peak may have been lower: it is the process's mark
	// from an earlier time, which was not passed.
	PeakAtMost bool `json:"peak_at_most,omitempty"`
}

// Consumed returns how much more was used at the end than before.
func (u MemoryUse) Consumed() alloc.Bytes {
	if u.Used < 0 || u.Before < 0 {
		return 0
	}
	return u.Used - u.Before
}

// Peaked returns how far the peak was above what was used at the end: the
// program needed Consumed and Peaked together. It is -1 if the peak is not known.
func (u MemoryUse) Peaked() alloc.Bytes {
	if u.Peak < 0 || u.Used < 0 {
		return -1
	}
	return max(0, u.Peak-u.Used)
}

// ownMemory is what one section did, with its parts.
type ownMemory struct {
	allocated, freed Tally
	peak             alloc.Bytes
}

func (o *ownMemory) allocate(bytes alloc.Bytes) {
	o.allocated.add(1, bytes)
	o.peak = max(o.peak, o.allocated.Bytes-o.freed.Bytes)
}

// Data returns what the section measured; of an open one, what it has so far. It
// waits until the device has done what was queued on it in an ended section.
func (s *Section) Data() SectionData {
	done := s.completed()
	if done == nil {
		return *s.soFar()
	}
	data := *done
	data.DeviceTime = s.device.read()
	return data
}

func (s *Section) completed() *SectionData {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	return s.data
}

// soFar is the data of an open section.
func (s *Section) soFar() *SectionData {
	t := s.tracker
	now := t.sections.host()
	t.mu.Lock()
	defer t.mu.Unlock()
	peak := s.high
	if !t.closed.Load() {
		t.sections.raise(&t.ledger)
		peak = s.peak()
	}
	return s.measured(t.now(), peak, now)
}

// measured puts together what is known at a moment.
func (s *Section) measured(now time.Duration, peak high, after hostMemory) *SectionData {
	t := s.tracker
	data := &SectionData{
		Path: s.path, Site: t.stacks.site(s.stack),
		Start: t.start.Add(s.began), Time: now - s.began, DeviceTime: -1,
		GPU:       MemoryUse{Before: s.start, Used: t.ledger.current.Bytes, Peak: peak.gpu},
		RSS:       MemoryUse{Before: s.before.resident, Used: after.resident, Peak: after.peak},
		Heap:      MemoryUse{Before: s.before.heap, Used: after.heap, Peak: -1},
		Allocated: s.own.allocated, Freed: s.own.freed, OwnPeak: s.own.peak,
	}
	if peak.host > 0 {
		data.RSS.Peak = max(peak.host, s.before.resident, after.resident)
	} else {
		data.RSS.PeakAtMost = after.peak >= 0 && after.peak == s.before.peak
	}
	return data
}

// String prints the data on one line, in ipygpulogger's compact form: MiB consumed,
// peaked and used in total.
//
//	RSS: 0.4/<=0.0/17.0 MiB | Go: 0.1/-/0.2 MiB | GPU: 2567.0/1437.0/5465.0 MiB | Time 0.012s | forward (Consumed/Peaked/Used Total)
func (d SectionData) String() string {
	return fmt.Sprintf("RSS: %s MiB | Go: %s MiB | GPU: %s MiB | Time %.3fs | %s (Consumed/Peaked/Used Total)",
		d.RSS.compact(), d.Heap.compact(), d.GPU.compact(), d.Time.Seconds(), d.Path)
}

func (u MemoryUse) compact() string {
	return inMiB(u.Consumed(), u.Used >= 0 && u.Before >= 0) + "/" + u.peaked() + "/" + inMiB(u.Used, u.Used >= 0)
}

// Table prints the data as ipygpulogger does, in MiB, with a line for Go's heap.
// A peak that is known only to be no higher stands with "<=", one that is not
// known as "-".
func (d SectionData) Table() string {
	text := fmt.Sprintf("RAM:  Consumed   Peaked  Used Total  in %.3fs", d.Time.Seconds())
	if d.DeviceTime >= 0 {
		text += fmt.Sprintf(", %.3fs by the GPU's clock", d.DeviceTime.Seconds())
	}
	text += " (" + d.Path + ")\n"
	for _, row := range []struct {
		name string
		use  MemoryUse
	}{{"RSS:", d.RSS}, {"Go:", d.Heap}, {"GPU:", d.GPU}} {
		text += fmt.Sprintf("%-5s %8s %8s  %10s MiB\n", row.name,
			inMiB(row.use.Consumed(), row.use.Used >= 0 && row.use.Before >= 0), row.use.peaked(), inMiB(row.use.Used, row.use.Used >= 0))
	}
	return text
}

func (u MemoryUse) peaked() string {
	text := inMiB(u.Peaked(), u.Peaked() >= 0)
	if u.PeakAtMost {
		return "<=" + text
	}
	return text
}

// inMiB prints an amount as the reference's table does, with a decimal more.
func inMiB(n alloc.Bytes, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(alloc.MiB))
}
