package tracker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// sections are the open sections, and what the closed ones came to. The
// tracker's mutex guards what stands below it.
type sections struct {
	config SectionConfig
	timer  alloc.Timer // nil if the device is none, or is not to be asked
	host   hostMeter
	open   atomic.Int32 // written under the mutex; while it is 0, nobody looks for the goroutine's section

	toldMany, toldDeep atomic.Bool // see warnSections

	// hostMark makes reading the kernel's mark and setting it back one step. It is
	// taken before the tracker's mutex, and only with ResetHostPeak.
	hostMark sync.Mutex

	paths            paths
	stats            []pathStats       // by path
	innermost        map[uint64]*frame // of each goroutine that is in a section
	oldest, youngest *Section          // of the open ones
	gpuPeaks         peaks
	hostPeaks        peaks
	spans            uint64        // sections ever
	timing           []*deviceTime // of ended sections, not counted yet
}

const (
	maxOpen  = 1 << 16
	maxDepth = 1 << 8
)

func (s *sections) init(cfg SectionConfig, device alloc.Device) {
	s.config = cfg
	s.config.ResetHostPeak = cfg.ResetHostPeak && !cfg.NoHost
	s.host.init(cfg)
	if !cfg.NoDeviceTime {
		s.timer, _ = alloc.As[alloc.Timer](device)
	}
	s.reset()
}

func (s *sections) reset() {
	s.open.Store(0)
	s.paths = newPaths()
	s.stats = make([]pathStats, len(s.paths.names))
	s.innermost = make(map[uint64]*frame)
	s.oldest, s.youngest = nil, nil
	s.gpuPeaks, s.hostPeaks = peaks{}, peaks{}
	s.timing = nil
}

// close ends all sections, forgets everything, and returns the device times that
// are still to be read. The caller holds the lock, and l has not been emptied.
func (s *sections) close(now time.Duration, l *ledger) (timing []*deviceTime) {
	s.gpuPeaks.raise(l.high)
	for s.oldest != nil {
		s.oldest.force(now, endedClosed)
	}
	timing = s.timing
	s.reset()
	return timing
}

// lockSections locks the tracker and brings the peaks of the open sections up to
// date. No allocation waits for the kernel.
func (t *MemTracker) lockSections() {
	s := &t.sections
	mark := alloc.Bytes(0)
	if s.config.ResetHostPeak {
		s.hostMark.Lock()
		mark = s.host.proc.resetPeak()
	}
	t.mu.Lock()
	s.hostPeaks.raise(mark)
	s.gpuPeaks.raise(t.ledger.high)
	t.ledger.high = t.ledger.current.Bytes
}

func (t *MemTracker) unlockSections() {
	t.mu.Unlock()
	if t.sections.config.ResetHostPeak {
		t.sections.hostMark.Unlock()
	}
}

// goroutine returns the calling goroutine's number if any section is open, and 0
// otherwise: all that sections cost a program that has none.
func (s *sections) goroutine() uint64 {
	if s.open.Load() == 0 {
		return 0
	}
	return callstack.Goroutine()
}

// at returns the section that the goroutine's work counts for; nil if it is none.
func (s *sections) at(goroutine uint64) *Section {
	if goroutine == 0 {
		return nil
	}
	return s.around(goroutine).orOpen()
}

// around returns the section that the goroutine is in, which may be done.
func (s *sections) around(goroutine uint64) *Section {
	if f := s.innermost[goroutine]; f != nil {
		return f.section
	}
	return nil
}

// orOpen returns the section or, if it is done, the innermost one around it that
// is not; nil if all are.
func (in *Section) orOpen() *Section {
	for in != nil && in.done {
		in = in.parent
	}
	return in
}

// pathID returns the path of a section, of which nil is the outside of all.
func (in *Section) pathID() uint32 {
	if in == nil {
		return noPath
	}
	return in.id
}

// pathOf returns the path of a part of the section.
func (in *Section) pathOf(name string) string {
	if name == "" {
		name = "unnamed"
	}
	if in == nil {
		return name
	}
	return in.path + "/" + name
}

// allocated counts bytes in a section and in all that it is part of.
func (s *sections) allocated(in *Section, bytes alloc.Bytes) {
	s.stats[in.id].live.add(1, bytes)
	for ; in != nil; in = in.parent {
		in.own.allocate(bytes)
	}
}

// freed counts bytes that came from the path and were freed by the goroutine. A
// free that failed is counted back: n is then -1, otherwise 1.
func (s *sections) freed(goroutine uint64, path uint32, n int64, bytes alloc.Bytes) {
	bytes *= alloc.Bytes(n)
	if path != noPath {
		s.stats[path].live.add(-n, -bytes)
	}
	for in := s.at(goroutine); in != nil; in = in.parent {
		in.own.free(n, bytes)
	}
}

// begin makes in the youngest section and its goroutine's innermost.
func (s *sections) begin(in *Section) {
	s.spans++
	in.span = s.spans
	if in.older = s.youngest; in.older != nil {
		in.older.younger = in
	} else {
		s.oldest = in
	}
	s.youngest = in
	s.gpuPeaks.begin(&in.gpu, in.from.gpu)
	if s.config.ResetHostPeak {
		in.host = new(run)
		s.hostPeaks.begin(in.host, 0)
	}
	in.frame.section = in
	s.enter(&in.frame, in.goroutine)
	s.open.Add(1)
}

// end takes in out, and returns its peaks.
func (s *sections) end(in *Section, here uint64) (peak high) {
	peak.gpu = s.gpuPeaks.end(&in.gpu)
	if in.host != nil {
		peak.host = s.hostPeaks.end(in.host)
	}
	if in.older != nil {
		in.older.younger = in.younger
	} else {
		s.oldest = in.younger
	}
	if in.younger != nil {
		in.younger.older = in.older
	} else {
		s.youngest = in.older
	}
	in.older, in.younger = nil, nil
	if here == in.goroutine {
		s.leave(&in.frame)
	} else {
		s.drop(&in.frame)
	}
	s.open.Add(-1)
	return peak
}
