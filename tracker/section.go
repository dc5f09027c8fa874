package tracker

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
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

// Section begins a part of s, in any goroutine.
func (s *Section) Section(name string) *Section {
	return s.tracker.sections.start(tables.StackID(s.tracker.stacks.Table.Capture(1)), s, name)
}

func (s *Section) run(f func()) *Section {
	defer s.End()
	f()
	return s
}

// Bind returns a function that calls f as a part of the section's work, in any goroutine: what
// f allocates and frees counts for s and carries its path, and a section that f begins is a
// part of s. When f returns, its goroutine is back in its own sections. Use it with an
// errgroup or a go statement:
//
//	step := tr.Section("step")
//	defer step.End()
//	var group errgroup.Group
//	group.Go(step.Bind(load))
//	group.Go(step.Bind(copy))
//	err := group.Wait()
//
// The function may be called any number of times and by many goroutines at once. If s has
// ended, the work counts for the innermost section around s that is still open, if there is
// one. Goroutines that f starts are not part of s. The error is f's.
func (s *Section) Bind(f func() error) func() error {
	return func() error {
		in := &frame{section: &s.section, bound: true}
		s.tracker.sections.enterBound(in)
		defer s.tracker.sections.leaveBound(in)
		return f()
	}
}

// End ends the section. It waits for the device only if the device times of many ended
// sections were not read, or if the tracker is closed. A second End does nothing.
func (s *Section) End() {
	t := s.tracker
	if !s.claimed.CompareAndSwap(false, true) {
		if m, _ := s.completed(); m.incomplete == endedClosed {
			warnClosed(t, "Section.End")
		}
		return
	}
	to := moment{at: t.clock.now(), cpu: t.sections.host.CPU()}
	s.device.stop()
	if t.sections.config.GCBefore {
		runtime.GC()
	}
	to.host = t.sections.host.Read()
	here, now := callstack.Goroutine(), t.clock.now()

	t.sections.lock()
	to.gpu = t.ledger.Current.Bytes
	inTime := !s.done // it was not ended by force meanwhile
	if inTime {
		t.sections.finish(&s.section, to, here, "")
		t.sections.queueTime(&s.section)
		t.sections.statsOf(s.id).add(&s.section)
		t.history.Add(s.event(mem.SectionEnded, now))
	}
	waiting := len(t.sections.timing)
	t.sections.unlock()

	if !inTime {
		s.device.read() // it holds events of the device, and is in no queue
	}
	if waiting > maxTiming {
		t.sections.readDeviceTimes(maxTiming)
	}
}

// Data returns what the section measured, or what it has measured so far if it is open. For an
// ended section it waits until the device has done the work that was queued in it.
func (s *Section) Data() sections.Data {
	data, timed := s.data()
	if timed {
		data.DeviceTime = s.device.read()
	}
	return data
}

// String prints what the section measured, or what it has measured so far: see sections.Data. It does not
// wait for the device.
func (s *Section) String() string {
	if s.tracker == nil {
		return "no section: a MemTracker begins them"
	}
	data, _ := s.data()
	return data.String()
}

// data is Data without the device's time. timed reports whether that can be read.
func (s *Section) data() (data sections.Data, timed bool) {
	m, done := s.completed()
	if !done {
		m = s.soFar()
	}
	data = sections.Data{
		Measured: sections.Measured{
			Path: s.path, CallSite: s.tracker.stacks.Site(s.stack), Stack: s.tracker.stacks.Stack(s.stack),
			Time: max(0, m.to.at-s.from.at), CPUTime: -1, DeviceTime: -1,
			Allocated: m.own.allocated, Freed: m.own.freed, SelfPeak: m.own.peak,
		},
		Start: s.tracker.start.Add(s.from.at), Incomplete: m.incomplete,
		GPU:  sections.MemoryUse{Before: s.from.gpu, Used: m.to.gpu, Peak: m.peak.gpu},
		RSS:  residentUse(s.from.host, m.to.host, m.peak.host),
		Heap: sections.MemoryUse{Before: s.from.host.Heap, Used: m.to.host.Heap, Peak: -1},
	}
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		data.CPUTime = max(0, m.to.cpu-s.from.cpu)
	}
	return data, m.timed
}

// soFar measures an open section.
func (s *Section) soFar() measures {
	t := s.tracker
	now := moment{cpu: t.sections.host.CPU(), host: t.sections.host.Read()}
	now.at = t.clock.now()
	t.sections.lock()
	defer t.sections.unlock()
	if s.done { // by now
		return s.final
	}
	now.gpu = t.ledger.Current.Bytes
	return measures{to: now, peak: s.peak(), own: s.own}
}

// completed returns what the section measured, if it has ended.
func (s *Section) completed() (m measures, done bool) {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	return s.final, s.done
}

// residentUse returns the use between two readings. mark is the peak since the section began, if it
// is known. Without it, the process's peak is the section's if it rose in between; otherwise it is
// only an upper bound.
func residentUse(from, to host.Memory, mark alloc.Bytes) sections.MemoryUse {
	use := sections.MemoryUse{Before: from.Resident, Used: to.Resident, Peak: -1}
	switch {
	case mark > 0 && to.Resident >= 0:
		use.Peak = max(mark, from.Resident, to.Resident)
	case from.Peak < 0 || to.Peak < 0:
	case to.Peak > from.Peak:
		use.Peak = to.Peak
	default:
		use.Peak, use.PeakAtMost = from.Peak, true // the kernel's value may fall a little
	}
	return use
}

// state returns the state of s; nil of nil.
func (s *Section) state() *section {
	if s == nil {
		return nil
	}
	return &s.section
}

// section is the state of a Section.
type section struct {
	stack     tables.StackID
	goroutine uint64
	device    deviceTime
	claimed   atomic.Bool // set by the call that ends the section

	// The rest is guarded by the tracker's mutex, until the section is done.
	path           string
	id             uint32 // number of the path
	span           uint64
	depth          int
	parent         *section // the innermost around it that was open when it began
	frame          frame    // its place in its goroutine
	older, younger *section // neighbours among the open sections, in the order in which they began
	gpu            run      // its place among the peaks of device memory
	host           *run     // nil unless the kernel's mark is reset
	from           moment
	own            ownMemory
	done           bool     // it counts no more, and what it measured is final
	final          measures // once it is done
}

func (s *section) event(action mem.Action, since time.Duration) tables.EventEntry {
	return tables.EventEntry{Since: since, Action: action, Section: uint16(s.id), Stack: s.stack, Allocated: alloc.Bytes(s.span)}
}

// peak returns the highest levels so far. The caller holds the lock through sectionTable.lock, which brings them up to date.
func (s *section) peak() high {
	peak := high{gpu: s.gpu.whole().peak}
	if s.host != nil {
		peak.host = s.host.whole().peak
	}
	return peak
}

// orOpen returns the section or, if it has ended, the innermost section around it that has not; nil
// if all have.
func (s *section) orOpen() *section {
	for s != nil && s.done {
		s = s.parent
	}
	return s
}

// pathID returns the path of a section; a nil section stands for the outside of all.
func (s *section) pathID() uint32 {
	if s == nil {
		return noPath
	}
	return s.id
}

// pathOf returns the path of a part of the section.
func (s *section) pathOf(name string) string {
	if name == "" {
		name = "unnamed"
	}
	if s == nil {
		return name
	}
	return s.path + "/" + name
}

// refuse makes s a section that measures nothing.
func (s *section) refuse(path, why string) {
	if len(path) > maxPathLength {
		path = "other"
	}
	s.path, s.done = path, true
	s.from.cpu, s.from.gpu, s.from.host = -1, -1, host.Unknown
	s.final = measures{to: s.from, peak: high{gpu: -1}, incomplete: why}
	s.device.abandoned = true
	s.claimed.Store(true)
}

func placeOf(stack tables.StackID, in *section, stream uint8) ledger.Place {
	return ledger.Place{Place: tables.Place{Stack: stack, Section: in.pathID()}, Stream: stream}
}

// moment is the memory at the beginning or the end of a section.
type moment struct {
	at   time.Duration // since the tracker's start
	cpu  time.Duration // of the process; -1 if unknown
	gpu  alloc.Bytes   // requested bytes of the live buffers
	host host.Memory
}

// high is the highest levels of an interval.
type high struct {
	gpu  alloc.Bytes
	host alloc.Bytes // 0 unless the kernel's mark is reset at each section
}

// measures are what was measured during a section.
type measures struct {
	to         moment
	peak       high
	own        ownMemory
	timed      bool   // the device may be asked
	incomplete string // the reason, if the data is incomplete
}

const (
	beganClosed = "it measured nothing: the tracker was closed before it began"
	endedClosed = "the tracker was closed before it ended"
	tooDeep     = "it measured nothing: it began inside of 256 sections"
	tooMany     = "it was ended by force: 65,536 sections were open"
)

// ownMemory is what one section allocated and freed, with its parts.
type ownMemory struct {
	allocated, freed mem.Tally
	level, peak      alloc.Bytes // bytes allocated minus bytes freed, and the highest value of that
}

func (o *ownMemory) allocate(bytes alloc.Bytes) {
	count(&o.allocated, 1, bytes)
	o.level = saturate.Add(o.level, bytes)
	o.peak = max(o.peak, o.level)
}

// free counts a free. If the free failed, it is called again with n = -1 and negative bytes to undo
// that.
func (o *ownMemory) free(n int64, bytes alloc.Bytes) {
	count(&o.freed, n, bytes)
	o.level = saturate.Add(o.level, -bytes)
	o.peak = max(o.peak, o.level)
}

// deviceTime is the time of a device's work in one section. The device is asked as
// late as possible, since it answers only when the work is done.
type deviceTime struct {
	interval capability.Interval // nil: there is no time
	asked    atomic.Bool         // set by the goroutine that asks the device
	answered sync.WaitGroup
	elapsed  time.Duration // -1 if it is not known

	// Guarded by the tracker's mutex.
	path      uint32
	abandoned bool // it was not stopped: read stops it first, and its time is not known
	counted   bool // its path's sum has it
}

// start marks the beginning of the work, if the device can measure time.
func (d *deviceTime) start(timer capability.Timer) {
	if timer == nil {
		return
	}
	if interval, err := timer.StartInterval(); err == nil {
		d.interval, d.elapsed = interval, -1
		d.answered.Add(1)
	}
}

// stop marks the end of the work.
func (d *deviceTime) stop() {
	if d.interval != nil && d.interval.Stop() != nil {
		d.interval = nil
	}
}

// read waits for the work's end and returns its time, or -1. It comes after stop,
// or when the section was abandoned.
func (d *deviceTime) read() time.Duration {
	if d.interval == nil {
		return -1
	}
	if d.asked.CompareAndSwap(false, true) {
		d.ask()
	}
	d.answered.Wait()
	return d.elapsed
}

// ask asks the device, once.
func (d *deviceTime) ask() {
	defer d.answered.Done()
	if d.abandoned && d.interval.Stop() != nil {
		return
	}
	if elapsed, err := d.interval.Elapsed(); err == nil && !d.abandoned {
		d.elapsed = elapsed
	}
}
