package tracker

import (
	"runtime"
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
// parts of it. Another goroutine, also one started inside, inherits nothing:
// there, s.Section or s.Do opens a part of s.
//
// Sections may nest, overlap and run side by side; none disturbs another. Every
// section must be ended, by any goroutine.
//
// The methods may be called from any goroutine.
type Section struct {
	tracker   *MemTracker
	parent    *Section
	goroutine uint64
	stack     callstack.ID
	before    hostMemory
	device    *deviceTime // nil if the device cannot time

	// The rest is guarded by the tracker's mutex.
	path           string
	id             uint32 // of the path
	span           uint64
	outer          *Section // the next to be its goroutine's innermost
	older, younger *Section // open sections, in the order of their beginnings
	high           high
	own            ownMemory
	start          alloc.Bytes // level
	began          time.Duration
	ended          bool         // End was called
	data           *SectionData // once End is done
	layer          *Layer
}

// SectionConfig says what a Section measures. The zero value is all that can
// be had without disturbing the program.
type SectionConfig struct {
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
	// most of the 14 microseconds that a section does (BenchmarkSection), and
	// these are in the time of the sections around it.
	NoHost       bool
	NoDeviceTime bool
}

// Section opens a section, as a part of the calling goroutine's innermost open
// one if there is one. The name may hold slashes: "features/conv1". The number
// of different paths is bounded, at some 16,000; those beyond it are "other".
func (t *MemTracker) Section(name string) *Section {
	return t.beginSection(t.stacks.table.Capture(1), nil, name)
}

// Do runs f inside a section of that name, and returns the section, ended.
func (t *MemTracker) Do(name string, f func()) *Section {
	return t.beginSection(t.stacks.table.Capture(1), nil, name).run(f)
}

// Section opens a part of s, in whichever goroutine it is called.
func (s *Section) Section(name string) *Section {
	return s.tracker.beginSection(s.tracker.stacks.table.Capture(1), s, name)
}

// Do runs f inside a part of s, and returns the part, ended.
func (s *Section) Do(name string, f func()) *Section {
	return s.tracker.beginSection(s.tracker.stacks.table.Capture(1), s, name).run(f)
}

func (s *Section) run(f func()) *Section {
	defer s.End()
	f()
	return s
}

// beginSection measures and opens a section. Without a parent it is a part of the
// goroutine's innermost.
func (t *MemTracker) beginSection(stack callstack.ID, parent *Section, name string) *Section {
	s := &Section{tracker: t, parent: parent, goroutine: callstack.Goroutine(), stack: stack}
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	s.before = t.sections.host()
	t.mu.Lock()
	s.open(name)
	t.mu.Unlock()
	device := startDeviceTime(t.sections.timer, s.id)
	t.mu.Lock()
	s.device, s.began = device, t.now()
	t.mu.Unlock()
	return s
}

// open enters the section among the open ones. The caller holds the lock.
func (s *Section) open(name string) {
	t := s.tracker
	if s.parent == nil {
		s.parent = t.sections.innermost[s.goroutine]
	}
	if name == "" {
		name = "unnamed"
	}
	if s.parent != nil {
		name = s.parent.path + "/" + name
	}
	for s.parent != nil && s.parent.ended {
		s.parent = s.parent.parent // an ended section counts nothing more
	}
	if s.path = name; t.closed.Load() {
		return
	}
	s.id = t.sections.path(name)
	s.path = t.sections.paths.names[s.id]
	s.start = t.ledger.current.Bytes
	t.sections.begin(s, &t.ledger)
	t.history.add(s.event(SectionBegan))
}

func (s *Section) event(action Action) event {
	return event{since: s.tracker.now(), action: action, section: uint16(s.id), stack: s.stack, allocated: alloc.Bytes(s.span)}
}

// End closes the section. It waits for the device only if many sections ended
// whose device times nobody has read, or the tracker is closed. A second End
// does nothing.
func (s *Section) End() {
	t := s.tracker
	t.mu.Lock()
	stopped, again := t.now(), s.ended
	s.ended = true
	t.mu.Unlock()
	if again {
		return
	}
	s.device.stop()
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	after := t.sections.host()
	t.mu.Lock()
	s.close(stopped, after)
	closed := t.closed.Load()
	t.mu.Unlock()
	if closed {
		s.device.read() // nobody else will, and it holds events of the device
	}
	t.readDeviceTimes(maxTiming)
}

// close takes the section out of the open ones and completes its data. The
// caller holds the lock.
func (s *Section) close(stopped time.Duration, after hostMemory) {
	t := s.tracker
	if t.closed.Load() {
		s.data = s.measured(stopped, s.high, after)
		return
	}
	s.data = s.measured(stopped, t.sections.end(s, &t.ledger), after)
	t.sections.stats[s.id].add(s)
	if s.device != nil {
		t.sections.timing = append(t.sections.timing, s.device)
	}
	t.history.add(s.event(SectionEnded))
}
