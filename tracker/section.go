package tracker

import (
	"runtime"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Section measures the memory and time of a stretch of a program, from MemTracker.Section to
// End.
//
//	s := tr.Section("forward")
//	defer s.End()
//
// A section belongs to the goroutine that began it. Allocations of that goroutine carry its
// path ("step/forward"), and sections that it begins become parts of it. Other goroutines,
// also those started inside, are not part of it until they join: Bind makes a function's work
// part of the section, SectionContext carries the section in a context, and s.Section begins a
// part of s in any goroutine.
//
// Sections may nest, overlap and run side by side, and any goroutine may end them. Within one
// goroutine they nest as calls do: a goroutine that ends a section has also left the sections
// that it began inside. So a forgotten End affects nothing beyond the next section around it.
// A section that was left this way still measures until its own End, but only work that is
// handed to it.
//
// End every section. At most 65,536 can be open; beyond that, the oldest is ended and
// Config.Logger gets one line. A section that is nested more than 256 deep measures nothing,
// and its work counts for the sections around it.
//
// The methods may be called from any goroutine.
type Section struct {
	tracker *MemTracker
	section
}

// Section begins a section. It is part of the calling goroutine's innermost open section, if
// there is one. The name may contain slashes: "features/conv1". At most about 16,000 different
// paths are kept; later ones are counted as "other".
//
// After Close a section measures nothing, its data says so, and Config.Logger gets one line.
func (t *MemTracker) Section(name string) *Section {
	return t.beginSection(tables.StackID(t.stacks.Table.Capture(1)), nil, name)
}

// Do runs f in a section of that name, and returns the section, which has ended.
func (t *MemTracker) Do(name string, f func()) *Section {
	return t.beginSection(tables.StackID(t.stacks.Table.Capture(1)), nil, name).run(f)
}

// Section begins a part of s, in any goroutine.
func (s *Section) Section(name string) *Section {
	return s.tracker.beginSection(tables.StackID(s.tracker.stacks.Table.Capture(1)), s, name)
}

func (s *Section) run(f func()) *Section {
	defer s.End()
	f()
	return s
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

// End ends the section. It waits for the device only if the device times of many ended
// sections were not read, or if the tracker is closed. A second End does nothing.
func (s *Section) End() {
	t := s.tracker
	if !s.claimed.CompareAndSwap(false, true) {
		if m, _ := s.completed(); m.incomplete == endedClosed {
			t.usedAfterClose("Section.End")
		}
		return
	}
	to := moment{at: t.now(), cpu: t.sections.host.CPU()}
	s.device.stop()
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	to.host = t.sections.host.Read()
	here, now := callstack.Goroutine(), t.now()

	t.lockSections()
	to.gpu = t.ledger.Current.Bytes
	inTime := !s.done // nobody forced it meanwhile
	if inTime {
		t.sections.finish(&s.section, to, here, "")
		t.sections.queueTime(&s.section)
		t.sections.statsOf(s.id).add(&s.section)
		t.history.Add(s.event(mem.SectionEnded, now))
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

// forceSection ends a section whose End may never come. The caller holds the lock.
func (t *MemTracker) forceSection(in *section, now time.Duration, why string) {
	in.device.abandoned = in.claimed.CompareAndSwap(false, true)
	t.sections.finish(in, moment{now, -1, t.ledger.Current.Bytes, host.Unknown}, 0, why)
	if in.device.abandoned {
		t.sections.queueTime(in)
	}
	t.history.Add(in.event(mem.SectionEnded, now))
}

// state returns what the tracker knows of s; nil of nil.
func (s *Section) state() *section {
	if s == nil {
		return nil
	}
	return &s.section
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

func (s *Section) completed() (m measures, done bool) {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	return s.final, s.done
}
