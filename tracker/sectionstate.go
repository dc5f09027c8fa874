package tracker

import (
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// section is what the tracker knows of a Section.
type section struct {
	stack     tables.StackID
	goroutine uint64
	device    deviceTime
	claimed   atomic.Bool // by who ends it

	// The rest is guarded by the tracker's mutex, until the section is done.
	path           string
	id             uint32 // of the path
	span           uint64
	depth          int
	parent         *section // the innermost around it that was open when it began
	frame          frame    // its place in its goroutine
	older, younger *section // open sections, in the order of their beginnings
	gpu            run      // among their peaks
	host           *run     // nil unless the kernel's mark is reset
	from           moment
	own            ownMemory
	layer          *Layer
	done           bool     // it counts no more, and what it measured is final
	final          measures // once it is done
}

func (s *section) event(action mem.Action, since time.Duration) tables.EventEntry {
	return tables.EventEntry{Since: since, Action: action, Section: uint16(s.id), Stack: s.stack, Allocated: alloc.Bytes(s.span)}
}

// moment is what is known of memory at one end of a section.
type moment struct {
	at   time.Duration // since the tracker's start
	cpu  time.Duration // of the process; -1 if it is not known
	gpu  alloc.Bytes   // requested bytes of the live buffers
	host hostMemory
}

// high is the highest levels of a stretch of time.
type high struct {
	gpu  alloc.Bytes
	host alloc.Bytes // 0 unless the kernel's mark is reset at each section
}

// measures are what a section measured beside its beginning.
type measures struct {
	to         moment
	peak       high
	own        ownMemory
	timed      bool   // the device may be asked
	incomplete string // why, if it is
}

const (
	beganClosed = "it measured nothing: the tracker was closed before it began"
	endedClosed = "the tracker was closed before it ended"
	tooDeep     = "it measured nothing: it began inside of 256 sections"
	tooMany     = "it was ended by force: 65,536 sections were open"
)

// ownMemory is what one section did, with its parts.
type ownMemory struct {
	allocated, freed mem.Tally
	level, peak      alloc.Bytes // of what it allocated less what it freed
}

func (o *ownMemory) allocate(bytes alloc.Bytes) {
	count(&o.allocated, 1, bytes)
	o.level = saturate.Add(o.level, bytes)
	o.peak = max(o.peak, o.level)
}

// free counts a free, or one that failed back: n is then -1, as are the bytes.
func (o *ownMemory) free(n int64, bytes alloc.Bytes) {
	count(&o.freed, n, bytes)
	o.level = saturate.Add(o.level, -bytes)
	o.peak = max(o.peak, o.level)
}

// peak is the highest levels so far. The caller has them brought up to date.
func (s *section) peak() high {
	peak := high{gpu: s.gpu.whole().peak}
	if s.host != nil {
		peak.host = s.host.whole().peak
	}
	return peak
}

// orOpen returns the section or, if it is done, the innermost one around it that
// is not; nil if all are.
func (in *section) orOpen() *section {
	for in != nil && in.done {
		in = in.parent
	}
	return in
}

// pathID returns the path of a section, of which nil is the outside of all.
func (in *section) pathID() uint32 {
	if in == nil {
		return noPath
	}
	return in.id
}

// pathOf returns the path of a part of the section.
func (in *section) pathOf(name string) string {
	if name == "" {
		name = "unnamed"
	}
	if in == nil {
		return name
	}
	return in.path + "/" + name
}

// frame is a place on a goroutine's stack of sections. While it is the innermost,
// the goroutine's work counts for its section, or, once that is done, for the
// innermost open one around that. A section that was opened in the goroutine has
// one frame, which goes when the section is left; a call of what Bind returned has
// one for as long as it runs.
type frame struct {
	section      *section
	bound        bool   // by Bind
	goroutine    uint64 // 0 if it is on no stack
	outer, inner *frame
}

// pass makes s a section that measures nothing.
func (s *section) pass(path, why string) {
	if len(path) > maxPathLength {
		path = "other"
	}
	s.path, s.done = path, true
	s.from.cpu, s.from.gpu, s.from.host = -1, -1, unknownHost
	s.final = measures{to: s.from, peak: high{gpu: -1}, incomplete: why}
	s.device.abandoned = true
	s.claimed.Store(true)
}

// Data returns what the section measured, or what it has measured so far if it is open. For an
// ended section it waits until the device has done the work that was queued in it.
func (s *Section) Data() snapshot.SectionData {
	m, done := s.completed()
	if !done {
		m = s.soFar()
	}
	data := snapshot.SectionData{
		Path: s.path, Site: s.tracker.stacks.Site(s.stack), Stack: s.tracker.stacks.Stack(s.stack), Incomplete: m.incomplete,
		Start: s.tracker.start.Add(s.from.at), Time: m.to.at - s.from.at, CPUTime: -1, DeviceTime: -1,
		GPU:       snapshot.MemoryUse{Before: s.from.gpu, Used: m.to.gpu, Peak: m.peak.gpu},
		RSS:       residentUse(s.from.host, m.to.host, m.peak.host),
		Heap:      snapshot.MemoryUse{Before: s.from.host.heap, Used: m.to.host.heap, Peak: -1},
		Allocated: m.own.allocated, Freed: m.own.freed, OwnPeak: m.own.peak,
	}
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		data.CPUTime = max(0, m.to.cpu-s.from.cpu)
	}
	if m.timed {
		data.DeviceTime = s.device.read()
	}
	return data
}

// soFar measures an open section.
func (s *Section) soFar() measures {
	t := s.tracker
	now := moment{cpu: t.sections.host.cpu(), host: t.sections.host.read()}
	now.at = t.now()
	t.lockSections()
	defer t.unlockSections()
	if s.done { // by now
		return s.final
	}
	now.gpu = t.ledger.Current.Bytes
	return measures{to: now, peak: s.peak(), own: s.own}
}

// residentUse is the use between two readings. mark is the section's own high-water mark. Without it the
// process's mark is the section's peak if it rose meanwhile, and otherwise an upper bound of it.
func residentUse(from, to hostMemory, mark alloc.Bytes) snapshot.MemoryUse {
	use := snapshot.MemoryUse{Before: from.resident, Used: to.resident, Peak: -1}
	switch {
	case mark > 0 && to.resident >= 0:
		use.Peak = max(mark, from.resident, to.resident)
	case from.peak < 0 || to.peak < 0:
	case to.peak > from.peak:
		use.Peak = to.peak
	default:
		use.Peak, use.PeakAtMost = from.peak, true // the kernel's figure may fall a little
	}
	return use
}

// pathStats is what the ended sections of one path came to together.
type pathStats struct {
	calls         int64
	stack         tables.StackID // who opened the last
	time          time.Duration
	deviceTime    time.Duration
	cpuTime       time.Duration
	timed         int64 // calls with a device time
	allocated     mem.Tally
	freed         mem.Tally
	peak, ownPeak alloc.Bytes // the highest of all
	rss, heap     alloc.Bytes // consumed
	live          mem.Tally   // buffers allocated in the path itself, alive now
	layer         *Layer      // as the last call described it
}

// add counts a section that has ended. The sums stop at the bounds of 64 bits.
func (p *pathStats) add(s *section) {
	m := &s.final
	p.calls++
	p.stack = s.stack
	p.time = saturate.Add(p.time, m.to.at-s.from.at)
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		p.cpuTime = saturate.Add(p.cpuTime, max(0, m.to.cpu-s.from.cpu))
	}
	p.allocated = p.allocated.Add(m.own.allocated)
	p.freed = p.freed.Add(m.own.freed)
	p.peak = max(p.peak, m.peak.gpu)
	p.ownPeak = max(p.ownPeak, m.own.peak)
	p.rss = saturate.Add(p.rss, consumed(s.from.host.resident, m.to.host.resident))
	p.heap = saturate.Add(p.heap, consumed(s.from.host.heap, m.to.host.heap))
	if s.layer != nil {
		p.layer = s.layer
	}
}

func consumed(before, used alloc.Bytes) alloc.Bytes {
	return snapshot.MemoryUse{Before: before, Used: used}.Consumed()
}

func (p *pathStats) addDeviceTime(d time.Duration) {
	if d >= 0 {
		p.deviceTime = saturate.Add(p.deviceTime, d)
		p.timed++
	}
}
