package tracker

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// sectionTable are the open sections, and what the closed ones came to. The tracker's mutex guards the fields
// from paths on.
type sectionTable struct {
	config SectionConfig
	timer  capability.Timer // nil if the device has none, or should not be asked
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
		s.timer, _ = alloc.As[capability.Timer](device)
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

// beginSection measures and opens a section. Without a parent it is a part of the
// goroutine's innermost.
func (t *MemTracker) beginSection(stack tables.StackID, parent *Section, name string) *Section {
	s := &Section{tracker: t, section: section{stack: stack, goroutine: callstack.Goroutine(), parent: parent.state()}}
	if t.closed.Load() {
		s.from.at = t.now()
		s.pass(s.parent.pathOf(name), beganClosed)
		t.usedAfterClose("Section")
		return s
	}
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	s.from.host = t.sections.host.Read()
	s.device.start(t.sections.timer)
	s.from.cpu = t.sections.host.CPU()
	s.from.at = t.now()

	t.lockSections()
	forced, refused := s.open(name)
	t.unlockSections()

	if refused != "" {
		s.device.read() // nobody else will, and it holds events of the device
	}
	if forced != nil {
		t.readDeviceTimes(maxTiming)
	}
	t.warnSections(s, forced, refused)
	return s
}

// open enters the section among the open ones. If there are too many, another one is ended by force
// and returned. If refused is not empty, it says why the section measures nothing. The caller holds
// the lock.
func (s *Section) open(name string) (forced *section, refused string) {
	t := s.tracker
	if s.parent == nil {
		s.parent = t.sections.around(s.goroutine)
	}
	path := s.parent.pathOf(name)
	s.parent = s.parent.orOpen() // one that is done counts nothing more
	switch {
	case t.closed.Load():
		s.pass(path, beganClosed)
		return nil, beganClosed
	case s.parent != nil && s.parent.depth == maxDepth:
		s.pass(path, tooDeep)
		return nil, tooDeep
	}
	s.depth = 1
	if s.parent != nil {
		s.depth += s.parent.depth
	}
	s.id = t.sections.path(path)
	s.path = t.sections.paths.names[s.id]
	s.from.gpu = t.ledger.Current.Bytes
	if t.sections.open.Load() == maxOpen {
		forced = t.sections.oldest
		t.forceSection(forced, s.from.at, tooMany)
	}
	t.sections.begin(&s.section)
	t.history.Add(s.event(mem.SectionBegan, s.from.at))
	return forced, ""
}

// warnSections tells the logger, once of each, that Ends seem to be missing. The
// caller holds no lock.
func (t *MemTracker) warnSections(opened *Section, forced *section, refused string) {
	switch {
	case refused == beganClosed:
		t.usedAfterClose("Section")
	case refused == tooDeep && !t.sections.toldDeep.Swap(true):
		t.report.Log.Warn("gpumemtrack: sections are opened in each other, 256 deep; is an End missing?",
			"section", opened.path, "at", t.stacks.Site(opened.stack).String())
	case forced != nil && !t.sections.toldMany.Swap(true):
		t.report.Log.Warn("gpumemtrack: 65,536 sections are open, and the oldest was ended by force; is an End missing?",
			"section", forced.path, "at", t.stacks.Site(forced.stack).String())
	}
}

// forceSection ends a section whose End may never come. The caller holds the lock.
func (t *MemTracker) forceSection(in *section, now time.Duration, why string) {
	in.device.abandoned = in.claimed.CompareAndSwap(false, true)
	t.sections.finish(in, moment{now, -1, t.ledger.Current.Bytes, host.Unknown}, 0, why)
	if in.device.abandoned {
		t.sections.queueTime(in)
	}
	t.history.Add(in.event(mem.SectionEnded, now))
}

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// readDeviceTimes adds the device times of ended sections to their paths' sums, if more than limit
// sections are waiting: all of them if limit is 0, otherwise the older half. When it returns, these
// times are counted, even if another goroutine read them.
func (t *MemTracker) readDeviceTimes(limit int) {
	t.mu.Lock()
	waiting := t.sections.timing
	if len(waiting) <= limit {
		t.mu.Unlock()
		return
	}
	batch := slices.Clone(waiting[:len(waiting)-limit/2])
	t.mu.Unlock()

	for _, d := range batch {
		d.read()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return
	}
	for _, d := range batch {
		if !d.counted {
			d.counted = true
			t.sections.statsOf(d.path).addDeviceTime(d.elapsed)
		}
	}
	t.sections.timing = slices.DeleteFunc(t.sections.timing, func(d *deviceTime) bool { return d.counted })
}

// lockSections locks the tracker and brings the peaks of the open sections up to
// date. No allocation waits for the kernel.
func (t *MemTracker) lockSections() {
	s := &t.sections
	mark := alloc.Bytes(0)
	if s.config.Host == "peak" {
		s.hostMark.Lock()
		mark = s.host.ResetPeak()
	}
	t.mu.Lock()
	s.hostPeaks.raise(mark)
	s.gpuPeaks.raise(t.ledger.High)
	t.ledger.High = t.ledger.Current.Bytes
}

func (t *MemTracker) unlockSections() {
	t.mu.Unlock()
	if t.sections.config.Host == "peak" {
		t.sections.hostMark.Unlock()
	}
}

func (t *MemTracker) enterFrame(f *frame) {
	here := callstack.Goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.enter(f, here)
	}
}

func (t *MemTracker) leaveFrame(f *frame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.leave(f)
	}
}

// goroutine returns the calling goroutine's number if any section is open, and 0
// otherwise: all that sections cost a program that has none.
func (s *sectionTable) goroutine() uint64 {
	if s.open.Load() == 0 {
		return 0
	}
	return callstack.Goroutine()
}

// goroutine is what callstack.Goroutine returns, or 0.
type goroutine = uint64

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

// frame is a place on a goroutine's stack of sections. While it is the innermost, the goroutine's
// work counts for its section or, once that has ended, for the innermost open section around that.
// A section has one frame, in the goroutine that opened it, until it is left. Each call of a
// function from Bind has a frame of its own while it runs.
type frame struct {
	section      *section
	bound        bool   // made by a call of a function from Bind
	goroutine    uint64 // 0 if it is on no stack
	outer, inner *frame
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
