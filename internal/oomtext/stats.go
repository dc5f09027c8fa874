package oomtext

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Stats are the counters of PyTorch's allocator, of torch.cuda.memory_summary or memory_stats. Negative ones are unknown.
type Stats struct {
	Line          int
	Device        string
	OOMs, Retries int64

	Requested, RequestedPeak alloc.Bytes
	Allocated, AllocatedPeak alloc.Bytes
	Reserved, ReservedPeak   alloc.Bytes
	// NonReleasable is inactive memory that shares a segment with buffers in use, so that it cannot go back to the driver.
	NonReleasable alloc.Bytes
}

func newStats(line int) *Stats {
	return &Stats{
		Line: line, OOMs: -1, Retries: -1, Requested: unknown, RequestedPeak: unknown, Allocated: unknown, AllocatedPeak: unknown,
		Reserved: unknown, ReservedPeak: unknown, NonReleasable: unknown,
	}
}

// Inactive returns the reserved memory that is not allocated; negative if that is unknown.
func (s *Stats) Inactive() alloc.Bytes {
	if s.Reserved < 0 || s.Allocated < 0 || s.Reserved < s.Allocated {
		return unknown
	}
	return s.Reserved - s.Allocated
}

// tableReader reads the lines of a table of statistics.
type tableReader struct {
	all  []*Stats
	now  *Stats // the last of them, while its lines are read
	left int    // lines that may still belong to it
}

var (
	summaryDevice = regexp.MustCompile(`device ID (\d{1,4})`)
	summaryOOMs   = regexp.MustCompile(`OOMs: (\d{1,18})`)
	summaryRetry  = regexp.MustCompile(`retries: (\d{1,18})`)
	statsEntry    = regexp.MustCompile(`["'](\w+(?:\.\w+){0,2})["']: ?(\d{1,18})`)
)

const (
	tableLines = 400
	maxStats   = 16 // tables of a text
)

// line reads a line, and reports whether it belongs to a table.
func (t *tableReader) line(line string, number int) bool {
	summary := strings.Contains(line, "PyTorch CUDA memory summary")
	if summary || strings.Contains(line, "allocated_bytes.all.current") {
		t.now, t.left = nil, 0
		if len(t.all) < maxStats {
			t.now, t.left = newStats(number), tableLines
			t.all = append(t.all, t.now)
		}
	}
	if t.now == nil {
		return false
	}
	if m := summaryDevice.FindStringSubmatch(line); summary && m != nil {
		t.now.Device = "GPU " + m[1]
	}
	read := t.row(line) || t.entries(line) || summary
	if t.left--; t.left <= 0 || !read && !strings.Contains(line, "|") {
		t.now = nil
		return false
	}
	return true
}

// row reads a row of memory_summary: the current value, and the peak.
func (t *tableReader) row(line string) bool {
	if m := summaryOOMs.FindStringSubmatch(line); m != nil {
		t.now.OOMs, _ = strconv.ParseInt(m[1], 10, 64)
		if m := summaryRetry.FindStringSubmatch(line); m != nil {
			t.now.Retries, _ = strconv.ParseInt(m[1], 10, 64)
		}
		return true
	}
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) < 3 {
		return false
	}
	values := quantities(cells[1] + " |" + cells[2])
	if len(values) != 2 {
		return true
	}
	set := func(now, peak *alloc.Bytes) {
		if *now < 0 { // below the row are those of the two pools
			*now = values[0].bytes
			if peak != nil {
				*peak = values[1].bytes
			}
		}
	}
	switch name := strings.TrimSpace(cells[0]); {
	case name == "Allocated memory":
		set(&t.now.Allocated, &t.now.AllocatedPeak)
	case name == "Requested memory":
		set(&t.now.Requested, &t.now.RequestedPeak)
	case name == "GPU reserved memory":
		set(&t.now.Reserved, &t.now.ReservedPeak)
	case strings.HasPrefix(name, "Non-rel"):
		set(&t.now.NonReleasable, nil)
	}
	return true
}

// entries reads what memory_stats returns, printed as JSON or by Python.
func (t *tableReader) entries(line string) bool {
	s, found := t.now, statsEntry.FindAllStringSubmatch(line, -1)
	for _, m := range found {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		switch m[1] {
		case "allocated_bytes.all.current":
			s.Allocated = alloc.Bytes(n)
		case "allocated_bytes.all.peak":
			s.AllocatedPeak = alloc.Bytes(n)
		case "requested_bytes.all.current":
			s.Requested = alloc.Bytes(n)
		case "requested_bytes.all.peak":
			s.RequestedPeak = alloc.Bytes(n)
		case "reserved_bytes.all.current":
			s.Reserved = alloc.Bytes(n)
		case "reserved_bytes.all.peak":
			s.ReservedPeak = alloc.Bytes(n)
		case "inactive_split_bytes.all.current":
			s.NonReleasable = alloc.Bytes(n)
		case "num_alloc_retries":
			s.Retries = n
		case "num_ooms":
			s.OOMs = n
		}
	}
	return len(found) > 0
}
