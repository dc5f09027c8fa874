package snapshot

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// ProfileRow is all ended sections of one path. Calls, times, RSS, Heap, Allocated and Freed
// are sums over the calls. Peak and OwnPeak are maxima. Live is the present level. Sums and
// levels include the sections' parts.
type ProfileRow struct {
	Path       string        `json:"path"`
	Site       mem.Frame     `json:"site"`            // who opened the last
	Stack      mem.Stack     `json:"stack,omitempty"` // its whole call stack, innermost first; shared: do not write
	Calls      int64         `json:"calls"`           // 0 if there are only parts of it
	Time       time.Duration `json:"time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"`        // -1 if it is not known
	CPUTime    time.Duration `json:"cpu_time_ns,omitempty"` // of the process, see SectionData; 0 if it is not known
	RSS        alloc.Bytes   `json:"rss_bytes"`             // resident set, consumed; 0 if it is not known
	Heap       alloc.Bytes   `json:"heap_bytes"`            // Go's heap, consumed; 0 if it is not known

	Allocated mem.Tally   `json:"allocated"`
	Freed     mem.Tally   `json:"freed"`
	Peak      alloc.Bytes `json:"peak_bytes"`     // the highest of SectionData.GPU.Peak
	OwnPeak   alloc.Bytes `json:"own_peak_bytes"` // the highest of SectionData.OwnPeak
	Live      mem.Tally   `json:"live"`           // allocated there and alive now

	Layer              // as Describe or the Estimator has it
	Estimate *Estimate `json:"estimate,omitempty"`
}

// Kept returns the average of what a call allocated minus what it freed.
func (r *ProfileRow) Kept() alloc.Bytes {
	if r.Calls == 0 {
		return 0
	}
	return (r.Allocated.Bytes - r.Freed.Bytes) / alloc.Bytes(r.Calls)
}

// Difference returns the measured amount minus the estimated one; 0 without an Estimate.
func (r *ProfileRow) Difference() alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.measured(r.Estimate.Of) - r.Estimate.Bytes
}

// measured is the amount of a call that a column shows.
func (r *ProfileRow) measured(of Column) alloc.Bytes {
	switch of {
	case ByAllocated:
		return r.Allocated.Bytes / alloc.Bytes(max(1, r.Calls))
	case ByKept:
		return r.Kept()
	case ByPeak:
		return r.Peak
	case ByOwnPeak:
		return r.OwnPeak
	case ByLive:
		return r.Live.Bytes
	}
	return 0
}
