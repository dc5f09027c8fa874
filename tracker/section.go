package tracker

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Section is a stretch of a program whose memory and time are measured: from
// MemTracker.Section to End.
//
//	s := tr.Section("forward")
//	defer s.End()
//
// A section belongs to the goroutine that opened it. Inside it, that goroutine's
// allocations carry its path ("step/forward"), and its further sections become
// parts of it. Another goroutine, also one started inside, inherits nothing until
// the section is handed to it: Bind makes a function's work part of the section,
// SectionContext carries the section in a context, and s.Section, s.Do and s.Run
// open a part of s in whichever goroutine they are called.
//
// Sections may nest, overlap and run side by side, and any goroutine may end them.
// In one goroutine they nest as calls do: where a goroutine ends a section that
// it opened, it has also left those that it opened inside. So an End that was
// forgotten spoils nothing beyond the next section around it. A section that was
// left this way still measures until its own End; what counts for it is the work
// that it is handed.
//
// Every section should be ended. At most 65,536 can be open: then the one that
// began first is ended by force, and Config.Logger is told once. A section more
// than 256 deep measures nothing, and what happens in it counts for those around it.
//
// The methods may be called from any goroutine.
type Section struct {
	tracker   *MemTracker
	stack     callstack.ID
	goroutine uint64
	device    deviceTime
	claimed   atomic.Bool // by who ends it

	// The rest is guarded by the tracker's mutex, until the section is done.
	path           string
	id             uint32 // of the path
	span           uint64
	depth          int
	parent         *Section // the innermost around it that was open when it began
	frame          frame    // its place in its goroutine
	older, younger *Section // open sections, in the order of their beginnings
	gpu            run      // among their peaks
	host           *run     // nil unless the kernel's mark is reset
	from           moment
	own            ownMemory
	layer          *Layer
	done           bool     // it counts no more, and what it measured is final
	final          measures // once it is done
}

// SectionConfig says what a Section measures. The zero value is what costs little
// and does not disturb the program: the device's memory and time, and the
// process's resident set at both ends.
type SectionConfig struct {
	// HostDetail measures Go's heap and the peak of the resident set as well, which
	// makes a section take about five times as long. GCBefore and ResetHostPeak
	// include it.
	HostDetail bool
	// GCBefore runs the Go collector before each measurement, outside of the
	// time that is measured: host memory then has no garbage in it, and buffers
	// that only finalizers and cleanups free are gone. It also hides how long
	// such buffers really live.
	GCBefore bool
	// ResetHostPeak sets the kernel's high-water mark of the resident set (VmHWM)
	// back at each begin and end, which makes the section's host peak
	// exact, and the mark useless for anybody else. Linux only.
	ResetHostPeak bool
	// NoHost and NoDeviceTime leave out what they name. To measure the host takes
	// most of the time of a section (BenchmarkSection).
	NoHost       bool
	NoDeviceTime bool
}

// Section opens a section, as a part of the calling goroutine's innermost open
// one if there is one. The name may hold slashes: "features/conv1". The number
// of different paths is bounded, at some 16,000; those beyond it are "other".
//
// Once the tracker is closed, a section measures nothing, which its data says, and
// Config.Logger is told once.
func (t *MemTracker) Section(name string) *Section {
	return t.beginSection(t.stacks.table.Capture(1), nil, name)
}

// Do runs f inside a section of that name, and returns the section, ended.
func (t *MemTracker) Do(name string, f func()) *Section {
	return t.beginSection(t.stacks.table.Capture(1), nil, name).run(f)
}

// Run runs f inside a section of that name, and returns f's error.
func (t *MemTracker) Run(name string, f func() error) error {
	return t.beginSection(t.stacks.table.Capture(1), nil, name).try(f)
}

// Section opens a part of s, in whichever goroutine it is called.
func (s *Section) Section(name string) *Section {
	return s.tracker.beginSection(s.tracker.stacks.table.Capture(1), s, name)
}

// Do runs f inside a part of s, and returns the part, ended.
func (s *Section) Do(name string, f func()) *Section {
	return s.tracker.beginSection(s.tracker.stacks.table.Capture(1), s, name).run(f)
}

// Run runs f inside a part of s, and returns f's error.
func (s *Section) Run(name string, f func() error) error {
	return s.tracker.beginSection(s.tracker.stacks.table.Capture(1), s, name).try(f)
}

func (s *Section) run(f func()) *Section {
	defer s.End()
	f()
	return s
}

func (s *Section) try(f func() error) error {
	defer s.End()
	return f()
}

// beginSection measures and opens a section. Without a parent it is a part of the
// goroutine's innermost.
func (t *MemTracker) beginSection(stack callstack.ID, parent *Section, name string) *Section {
	s := &Section{tracker: t, stack: stack, goroutine: callstack.Goroutine(), parent: parent}
	if t.closed.Load() {
		s.from.at = t.now()
		s.pass(parent.pathOf(name), beganClosed)
		t.usedAfterClose("Section")
		return s
	}
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	s.from.host = t.sections.host.read()
	s.device.start(t.sections.timer)
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

// open enters the section among the open ones, for which another may have to be
// ended by force. Where it says why it refused, the section measures nothing. The
// caller holds the lock.
func (s *Section) open(name string) (forced *Section, refused string) {
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
	s.from.gpu = t.ledger.current.Bytes
	if t.sections.open.Load() == maxOpen {
		forced = t.sections.oldest
		forced.force(s.from.at, tooMany)
	}
	t.sections.begin(s)
	t.history.add(s.event(SectionBegan, s.from.at))
	return forced, ""
}

// pass makes s a section that measures nothing.
func (s *Section) pass(path, why string) {
	if len(path) > maxPathLength {
		path = "other"
	}
	s.path, s.done = path, true
	s.from.gpu, s.from.host = -1, unknownHost
	s.final = measures{to: s.from, peak: high{gpu: -1}, incomplete: why}
	s.device.abandoned = true
	s.claimed.Store(true)
}

func (s *Section) event(action Action, since time.Duration) event {
	return event{since: since, action: action, section: uint16(s.id), stack: s.stack, allocated: alloc.Bytes(s.span)}
}

// End closes the section. It waits for the device only if many sections ended
// whose device times nobody has read, or the tracker is closed. A second End
// does nothing.
func (s *Section) End() {
	t := s.tracker
	if !s.claimed.CompareAndSwap(false, true) {
		if m, _ := s.completed(); m.incomplete == endedClosed {
			t.usedAfterClose("Section.End")
		}
		return
	}
	to := moment{at: t.now()}
	s.device.stop()
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	to.host = t.sections.host.read()
	here, now := callstack.Goroutine(), t.now()

	t.lockSections()
	to.gpu = t.ledger.current.Bytes
	inTime := !s.done // nobody forced it meanwhile
	if inTime {
		s.close(to, here, "")
		s.queueTime()
		t.sections.stats[s.id].add(s)
		t.history.add(s.event(SectionEnded, now))
	}
	waiting := len(t.sections.timing)
	t.unlockSections()

	if !inTime {
		s.device.read() // as above
	}
	if waiting > maxTiming {
		t.readDeviceTimes(maxTiming)
	}
}

// force ends a section whose End may never come. The caller holds the lock.
func (s *Section) force(now time.Duration, why string) {
	s.device.abandoned = s.claimed.CompareAndSwap(false, true)
	s.close(moment{now, s.tracker.ledger.current.Bytes, unknownHost}, 0, why)
	if s.device.abandoned {
		s.queueTime()
	}
	s.tracker.history.add(s.event(SectionEnded, now))
}

// close takes the section out of the open ones: what it measured is final. here is
// the goroutine that ends it, if any does. The caller holds the lock.
func (s *Section) close(to moment, here uint64, incomplete string) {
	peak := s.tracker.sections.end(s, here)
	s.done, s.final = true, measures{to: to, peak: peak, own: s.own, incomplete: incomplete}
}

// warnSections tells the logger, once of each, that Ends seem to be missing. The
// caller holds no lock.
func (t *MemTracker) warnSections(opened, forced *Section, refused string) {
	switch {
	case refused == beganClosed:
		t.usedAfterClose("Section")
	case refused == tooDeep && !t.sections.toldDeep.Swap(true):
		t.report.log.Warn("gpumemtrack: sections are opened in each other, 256 deep; is an End missing?",
			"section", opened.path, "at", t.stacks.site(opened.stack).String())
	case forced != nil && !t.sections.toldMany.Swap(true):
		t.report.log.Warn("gpumemtrack: 65,536 sections are open, and the oldest was ended by force; is an End missing?",
			"section", forced.path, "at", t.stacks.site(forced.stack).String())
	}
}
