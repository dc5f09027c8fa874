package tracker

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
)

// sectionTable are the open sections, and what the closed ones came to. The tracker's mutex guards the fields
// from paths on.
type sectionTable struct {
	config SectionConfig
	timer  ability.Timer // nil if the device has none, or should not be asked
	host   host.Meter
	open   atomic.Int32 // written under the mutex; while it is 0, nobody looks for the goroutine's section

	toldMany, toldDeep atomic.Bool // see warnSections

	// hostMark makes reading the kernel's mark and setting it back one step. It is
	// taken before the tracker's mutex, and only if Host is "peak".
	hostMark sync.Mutex

	paths            paths
	stats            slab.Slab[pathStats] // by path, beginning with otherPath
	innermost        map[uint64]*frame    // by goroutine that is in a section
	oldest, youngest *section             // ends of the list of open sections
	gpuPeaks         peaks
	hostPeaks        peaks
	spans            uint64        // sections ever
	timing           []*deviceTime // times of ended sections, not counted yet
}

const (
	maxOpen  = 1 << 16
	maxDepth = 1 << 8
)

func (s *sectionTable) init(cfg SectionConfig, device alloc.Device) error {
	if !slices.Contains([]string{"", "detail", "peak", "none"}, cfg.Host) {
		return fmt.Errorf("Config.Sections.Host is %q: want \"\", \"detail\", \"peak\" or \"none\"", cfg.Host)
	}
	s.config = cfg
	s.host.Init(cfg.Host == "none", cfg.Host != "" || cfg.GCBefore)
	if !cfg.NoDeviceTime {
		s.timer, _ = alloc.As[ability.Timer](device)
	}
	s.reset()
	return nil
}

func (s *sectionTable) reset() {
	s.open.Store(0)
	s.paths = newPaths()
	s.stats.Reset() // profiles may be reading it
	s.stats.Get()   // the entry of otherPath
	s.innermost = make(map[uint64]*frame)
	s.oldest, s.youngest = nil, nil
	s.gpuPeaks, s.hostPeaks = peaks{}, peaks{}
	s.timing = nil
}

// close forgets everything, once all sections are done, and returns the device
// times that are still to be read. The caller holds the lock.
func (s *sectionTable) close() (timing []*deviceTime) {
	timing = s.timing
	s.reset()
	return timing
}

// goroutine returns the calling goroutine's number if any section is open, and 0
// otherwise: all that sections cost a program that has none.
func (s *sectionTable) goroutine() uint64 {
	if s.open.Load() == 0 {
		return 0
	}
	return callstack.Goroutine()
}

// at returns the section that a goroutine's work counts for, or nil.
func (s *sectionTable) at(goroutine uint64) *section {
	if goroutine == 0 {
		return nil
	}
	return s.around(goroutine).orOpen()
}

// around returns the section that the goroutine is in. That section may have ended already.
func (s *sectionTable) around(goroutine uint64) *section {
	if f := s.innermost[goroutine]; f != nil {
		return f.section
	}
	return nil
}

// allocated counts bytes in a section and in all that it is part of.
func (s *sectionTable) allocated(in *section, bytes alloc.Bytes) {
	count(&s.statsOf(in.id).live, 1, bytes)
	for ; in != nil; in = in.parent {
		in.own.allocate(bytes)
	}
}

// freed counts bytes that came from the path and were freed by the goroutine. A
// free that failed is counted back: n is then -1, otherwise 1.
func (s *sectionTable) freed(goroutine uint64, path uint32, n int64, bytes alloc.Bytes) {
	bytes *= alloc.Bytes(n)
	if path != noPath {
		count(&s.statsOf(path).live, -n, -bytes)
	}
	for in := s.at(goroutine); in != nil; in = in.parent {
		in.own.free(n, bytes)
	}
}

// begin opens a section as the innermost of its goroutine.
func (s *sectionTable) begin(in *section) {
	s.spans++
	in.span = s.spans
	if in.older = s.youngest; in.older != nil {
		in.older.younger = in
	} else {
		s.oldest = in
	}
	s.youngest = in
	s.gpuPeaks.begin(&in.gpu, in.from.gpu)
	if s.config.Host == "peak" {
		in.host = new(run)
		s.hostPeaks.begin(in.host, 0)
	}
	in.frame.section = in
	s.enter(&in.frame, in.goroutine)
	s.open.Add(1)
}

// end takes in out, and returns its peaks.
func (s *sectionTable) end(in *section, here uint64) (peak high) {
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

// statsOf returns the sums of a path's ended sections, for the caller to change.
func (s *sectionTable) statsOf(path uint32) *pathStats {
	s.stats.Touch(slab.ID(path))
	return s.stats.At(slab.ID(path))
}

// path returns the number of a path.
func (s *sectionTable) path(name string) uint32 {
	id := s.paths.at(name)
	if slab.ID(id) == s.stats.Bound() {
		s.stats.Get()
	}
	return id
}

// finish takes a section out of the open ones; its measurements are final. here is the goroutine
// that ends it, or 0.
func (s *sectionTable) finish(in *section, to moment, here uint64, incomplete string) {
	peak := s.end(in, here)
	in.done, in.final = true, measures{to: to, peak: peak, own: in.own, incomplete: incomplete}
}

// queueTime keeps the device's time of a section that is done for readDeviceTimes.
func (s *sectionTable) queueTime(in *section) {
	if in.device.interval != nil {
		in.device.path, in.final.timed = in.id, true
		s.timing = append(s.timing, &in.device)
	}
}

// enter makes f the goroutine's innermost frame.
func (s *sectionTable) enter(f *frame, goroutine uint64) {
	f.goroutine = goroutine
	if f.outer = s.innermost[goroutine]; f.outer != nil {
		f.outer.inner = f
	}
	s.innermost[goroutine] = f
}

// leave takes f off its goroutine's stack, with the sections that the goroutine opened inside it.
// Sections inside a bound function stay, because that function is still running.
func (s *sectionTable) leave(f *frame) {
	for f != nil {
		inner := f.inner
		s.drop(f)
		if inner != nil && inner.bound {
			return
		}
		f = inner
	}
}

// drop takes f off its goroutine's stack, if it is still there.
func (s *sectionTable) drop(f *frame) {
	switch {
	case f.goroutine == 0:
		return
	case f.inner != nil:
		f.inner.outer = f.outer
	case f.outer != nil:
		s.innermost[f.goroutine] = f.outer
	default:
		delete(s.innermost, f.goroutine)
	}
	if f.outer != nil {
		f.outer.inner = f.inner
	}
	f.goroutine, f.outer, f.inner = 0, nil, nil
}
