package tracker

import (
	"context"
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

// sectionTable has the open sections, and the sums of those that have ended. The tracker's mutex guards the fields from
// paths on.
type sectionTable struct {
	t      *MemTracker
	config SectionConfig
	timer  capability.Timer // nil if the device has none, or should not be asked
	host   host.Meter
	open   atomic.Int32 // written under the mutex; while it is 0, an allocation does not ask for its goroutine

	loggedMany, loggedDeep atomic.Bool // see warn

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

func (st *sectionTable) init(cfg SectionConfig, device alloc.Device) error {
	if !slices.Contains([]string{"", "detail", "peak", "none"}, cfg.Host) {
		return fmt.Errorf("Config.Sections.Host is %q: want \"\", \"detail\", \"peak\" or \"none\"", cfg.Host)
	}
	st.config = cfg
	st.host.Init(cfg.Host == "none", cfg.Host != "" || cfg.GCBefore)
	if !cfg.NoDeviceTime {
		st.timer, _ = alloc.As[capability.Timer](device)
	}
	st.reset()
	return nil
}

func (st *sectionTable) reset() {
	st.open.Store(0)
	st.paths = newPaths()
	st.stats.Reset() // profiles may be reading it
	st.stats.Get()   // the entry of otherPath
	st.innermost = make(map[uint64]*frame)
	st.oldest, st.youngest = nil, nil
	st.gpuPeaks, st.hostPeaks = peaks{}, peaks{}
	st.timing = nil
}

// close forgets everything, once all sections are done, and returns the device
// times that are still to be read. The caller holds the lock.
func (st *sectionTable) close() (timing []*deviceTime) {
	timing = st.timing
	st.reset()
	return timing
}

// start measures and opens a section. Without a parent it is a part of the goroutine's innermost.
func (st *sectionTable) start(stack tables.StackID, parent *Section, name string) *Section {
	t := st.t
	s := &Section{tracker: t, section: section{stack: stack, goroutine: callstack.Goroutine(), parent: parent.state()}}
	if t.closed.Load() {
		s.from.at = t.clock.now()
		s.refuse(s.parent.pathOf(name), beganClosed)
		warnClosed(t, "Section")
		return s
	}
	if st.config.GCBefore {
		runtime.GC()
	}
	s.from.host = st.host.Read()
	s.device.start(st.timer)
	s.from.cpu = st.host.CPU()
	s.from.at = t.clock.now()

	st.lock()
	forced, refused := s.open(name)
	st.unlock()

	if refused != "" {
		s.device.read() // it holds events of the device, and is in no queue
	}
	if forced != nil {
		st.readDeviceTimes(maxTiming)
	}
	st.warn(s, forced, refused)
	return s
}

// open adds the section to the open ones. If there are too many, another one is ended by force
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
		s.refuse(path, beganClosed)
		return nil, beganClosed
	case s.parent != nil && s.parent.depth == maxDepth:
		s.refuse(path, tooDeep)
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
		t.sections.force(forced, s.from.at, tooMany)
	}
	t.sections.begin(&s.section)
	t.history.Add(s.event(mem.SectionBegan, s.from.at))
	return forced, ""
}

// startInContext is start for MemTracker.SectionContext.
func (st *sectionTable) startInContext(ctx context.Context, stack tables.StackID, name string) (context.Context, *Section) {
	parent, _ := ctx.Value(sectionKey{st}).(*Section)
	s := st.start(stack, parent, name)
	return context.WithValue(ctx, sectionKey{st}, s), s
}

// sectionKey is the key under which a context carries a section of a tracker.
type sectionKey struct{ of *sectionTable }

// warn logs, once of each kind, that an End seems to be missing. The caller holds no lock.
func (st *sectionTable) warn(opened *Section, forced *section, refused string) {
	t := st.t
	switch {
	case refused == beganClosed:
		warnClosed(t, "Section")
	case refused == tooDeep && !st.loggedDeep.Swap(true):
		t.report.Log.Warn("gpumemtrack: sections are opened in each other, 256 deep; is an End missing?",
			"section", opened.path, "at", t.stacks.Site(opened.stack).String())
	case forced != nil && !st.loggedMany.Swap(true):
		t.report.Log.Warn("gpumemtrack: 65,536 sections are open, and the oldest was ended by force; is an End missing?",
			"section", forced.path, "at", t.stacks.Site(forced.stack).String())
	}
}

// force ends a section whose End may never come. The caller holds the lock.
func (st *sectionTable) force(in *section, now time.Duration, why string) {
	t := st.t
	in.device.abandoned = in.claimed.CompareAndSwap(false, true)
	st.finish(in, moment{now, -1, t.ledger.Current.Bytes, host.Unknown}, 0, why)
	if in.device.abandoned {
		st.queueTime(in)
	}
	t.history.Add(in.event(mem.SectionEnded, now))
}

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// readDeviceTimes adds the device times of ended sections to their paths' sums, if more than limit
// sections are waiting: all of them if limit is 0, otherwise the older half. When it returns, these
// times are counted, even if another goroutine read them.
func (st *sectionTable) readDeviceTimes(limit int) {
	t := st.t
	t.mu.Lock()
	waiting := st.timing
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
			st.statsOf(d.path).addDeviceTime(d.elapsed)
		}
	}
	st.timing = slices.DeleteFunc(st.timing, func(d *deviceTime) bool { return d.counted })
}

// lock locks the tracker and brings the peaks of the open sections up to date. No allocation waits for the kernel.
func (st *sectionTable) lock() {
	t := st.t
	mark := alloc.Bytes(0)
	if st.config.Host == "peak" {
		st.hostMark.Lock()
		mark = st.host.ResetPeak()
	}
	t.mu.Lock()
	st.hostPeaks.raise(mark)
	st.gpuPeaks.raise(t.ledger.High)
	t.ledger.High = t.ledger.Current.Bytes
}

func (st *sectionTable) unlock() {
	st.t.mu.Unlock()
	if st.config.Host == "peak" {
		st.hostMark.Unlock()
	}
}

// enterBound is enter for a call of a function from Bind. It takes the lock.
func (st *sectionTable) enterBound(f *frame) {
	t, here := st.t, callstack.Goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.enter(f, here)
	}
}

// leaveBound is leave for such a call.
func (st *sectionTable) leaveBound(f *frame) {
	t := st.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.leave(f)
	}
}

// goroutine returns the calling goroutine's number if any section is open, and 0
// otherwise: all that sections cost a program that has none.
func (st *sectionTable) goroutine() uint64 {
	if st.open.Load() == 0 {
		return 0
	}
	return callstack.Goroutine()
}

// goroutine is what callstack.Goroutine returns, or 0.
type goroutine = uint64

// at returns the section that a goroutine's work counts for, or nil.
func (st *sectionTable) at(goroutine uint64) *section {
	if goroutine == 0 {
		return nil
	}
	return st.around(goroutine).orOpen()
}

// around returns the section that the goroutine is in. That section may have ended already.
func (st *sectionTable) around(goroutine uint64) *section {
	if f := st.innermost[goroutine]; f != nil {
		return f.section
	}
	return nil
}

// allocated counts bytes in a section and in all that it is part of.
func (st *sectionTable) allocated(in *section, bytes alloc.Bytes) {
	count(&st.statsOf(in.id).live, 1, bytes)
	for ; in != nil; in = in.parent {
		in.own.allocate(bytes)
	}
}

// freed counts bytes that came from the path and were freed by the goroutine. A
// free that failed is counted back: n is then -1, otherwise 1.
func (st *sectionTable) freed(goroutine uint64, path uint32, n int64, bytes alloc.Bytes) {
	bytes *= alloc.Bytes(n)
	if path != noPath {
		count(&st.statsOf(path).live, -n, -bytes)
	}
	for in := st.at(goroutine); in != nil; in = in.parent {
		in.own.free(n, bytes)
	}
}

// begin opens a section as the innermost of its goroutine.
func (st *sectionTable) begin(in *section) {
	st.spans++
	in.span = st.spans
	if in.older = st.youngest; in.older != nil {
		in.older.younger = in
	} else {
		st.oldest = in
	}
	st.youngest = in
	st.gpuPeaks.begin(&in.gpu, in.from.gpu)
	if st.config.Host == "peak" {
		in.host = new(run)
		st.hostPeaks.begin(in.host, 0)
	}
	in.frame.section = in
	st.enter(&in.frame, in.goroutine)
	st.open.Add(1)
}

// end removes a section from the open ones, and returns its peaks.
func (st *sectionTable) end(in *section, here uint64) (peak high) {
	peak.gpu = st.gpuPeaks.end(&in.gpu)
	if in.host != nil {
		peak.host = st.hostPeaks.end(in.host)
	}
	if in.older != nil {
		in.older.younger = in.younger
	} else {
		st.oldest = in.younger
	}
	if in.younger != nil {
		in.younger.older = in.older
	} else {
		st.youngest = in.older
	}
	in.older, in.younger = nil, nil
	if here == in.goroutine {
		st.leave(&in.frame)
	} else {
		st.drop(&in.frame)
	}
	st.open.Add(-1)
	return peak
}

// finish removes a section from the open ones, and makes its measurements final. here is the goroutine
// that ends it, or 0.
func (st *sectionTable) finish(in *section, to moment, here uint64, incomplete string) {
	peak := st.end(in, here)
	in.done, in.final = true, measures{to: to, peak: peak, own: in.own, incomplete: incomplete}
}

// queueTime queues the device time of an ended section for readDeviceTimes.
func (st *sectionTable) queueTime(in *section) {
	if in.device.interval != nil {
		in.device.path, in.final.timed = in.id, true
		st.timing = append(st.timing, &in.device)
	}
}

// statsOf returns the sums of a path's ended sections, for the caller to change.
func (st *sectionTable) statsOf(path uint32) *pathStats {
	st.stats.Touch(slab.ID(path))
	return st.stats.At(slab.ID(path))
}

// path returns the number of a path.
func (st *sectionTable) path(name string) uint32 {
	id := st.paths.at(name)
	if slab.ID(id) == st.stats.Bound() {
		st.stats.Get()
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
func (st *sectionTable) enter(f *frame, goroutine uint64) {
	f.goroutine = goroutine
	if f.outer = st.innermost[goroutine]; f.outer != nil {
		f.outer.inner = f
	}
	st.innermost[goroutine] = f
}

// leave takes f off its goroutine's stack, with the sections that the goroutine opened inside it.
// Sections inside a bound function stay, because that function is still running.
func (st *sectionTable) leave(f *frame) {
	for f != nil {
		inner := f.inner
		st.drop(f)
		if inner != nil && inner.bound {
			return
		}
		f = inner
	}
}

// drop takes f off its goroutine's stack, if it is still there.
func (st *sectionTable) drop(f *frame) {
	switch {
	case f.goroutine == 0:
		return
	case f.inner != nil:
		f.inner.outer = f.outer
	case f.outer != nil:
		st.innermost[f.goroutine] = f.outer
	default:
		delete(st.innermost, f.goroutine)
	}
	if f.outer != nil {
		f.outer.inner = f.inner
	}
	f.goroutine, f.outer, f.inner = 0, nil, nil
}
