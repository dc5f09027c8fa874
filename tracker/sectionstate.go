package tracker

import (
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// section is what the tracker knows about a Section.
type section struct {
	stack     tables.StackID
	goroutine uint64
	device    deviceTime
	claimed   atomic.Bool // set by whoever ends the section

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

// moment is the memory at the beginning or the end of a section.
type moment struct {
	at   time.Duration // since the tracker's start
	cpu  time.Duration // of the process; -1 if unknown
	gpu  alloc.Bytes   // requested bytes of the live buffers
	host host.Memory
}

// high is the highest levels of a stretch of time.
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

// peak is the highest levels so far. The caller has them brought up to date.
func (s *section) peak() high {
	peak := high{gpu: s.gpu.whole().peak}
	if s.host != nil {
		peak.host = s.host.whole().peak
	}
	return peak
}

// orOpen returns the section or, if it has ended, the innermost section around it that has not; nil
// if all have.
func (in *section) orOpen() *section {
	for in != nil && in.done {
		in = in.parent
	}
	return in
}

// pathID returns the path of a section; a nil section stands for the outside of all.
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

// pass makes s a section that measures nothing.
func (s *section) pass(path, why string) {
	if len(path) > maxPathLength {
		path = "other"
	}
	s.path, s.done = path, true
	s.from.cpu, s.from.gpu, s.from.host = -1, -1, host.Unknown
	s.final = measures{to: s.from, peak: high{gpu: -1}, incomplete: why}
	s.device.abandoned = true
	s.claimed.Store(true)
}

// pathStats is the sum of all ended sections with one path.
type pathStats struct {
	calls         int64
	stack         tables.StackID // who opened the last
	time          time.Duration
	deviceTime    time.Duration
	timed         int64 // calls with a device time
	cpuTime       knownSum[time.Duration]
	allocated     mem.Tally
	freed         mem.Tally
	peak, ownPeak alloc.Bytes           // the highest of all
	rss, heap     knownSum[alloc.Bytes] // consumed
	live          mem.Tally             // buffers allocated in the path itself, alive now
}

// add counts a section that has ended. The sums stop at the bounds of 64 bits.
func (p *pathStats) add(s *section) {
	m := &s.final
	p.calls++
	p.stack = s.stack
	p.time = saturate.Add(p.time, max(0, m.to.at-s.from.at)) // a clock may jump
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		p.cpuTime.add(max(0, m.to.cpu-s.from.cpu))
	}
	p.allocated = p.allocated.Add(m.own.allocated)
	p.freed = p.freed.Add(m.own.freed)
	p.peak = max(p.peak, m.peak.gpu)
	p.ownPeak = max(p.ownPeak, m.own.peak)
	if s.from.host.Resident >= 0 && m.to.host.Resident >= 0 {
		p.rss.add(m.to.host.Resident - s.from.host.Resident)
	}
	if s.from.host.Heap >= 0 && m.to.host.Heap >= 0 {
		p.heap.add(m.to.host.Heap - s.from.host.Heap)
	}
}

// knownSum is a sum that leaves out unknown values.
type knownSum[T ~int64] struct {
	sum T
	any bool
}

func (k *knownSum[T]) add(n T) { k.sum, k.any = saturate.Add(k.sum, n), true }

// get returns nil if nothing is known.
func (k knownSum[T]) get() *T {
	if !k.any {
		return nil
	}
	return &k.sum
}

func (p *pathStats) addDeviceTime(d time.Duration) {
	if d >= 0 {
		p.deviceTime = saturate.Add(p.deviceTime, d)
		p.timed++
	}
}

// count adds buffers to a sum.
func count(sum *mem.Tally, buffers int64, bytes alloc.Bytes) {
	*sum = sum.Add(mem.Tally{Count: buffers, Bytes: bytes})
}

// paths numbers the paths of sections. Numbers are not given back.
type paths struct {
	names []string // only ever appended to, so that a copy of the slice stays good
	ids   map[string]uint32
}

const (
	noPath    uint32 = iota // outside of all sections
	otherPath               // beyond the bounds

	maxPaths      = 1 << 14
	maxPathLength = 1 << 10
)

func newPaths() paths {
	p := paths{ids: make(map[string]uint32)}
	p.add("")
	p.add("other")
	return p
}

func (p *paths) add(path string) uint32 {
	id := uint32(len(p.names))
	p.names = append(p.names, path)
	p.ids[path] = id
	return id
}

// at returns the number of a path. Paths that are too many or too long are one.
func (p *paths) at(path string) uint32 {
	id, ok := p.ids[path]
	switch {
	case ok:
		return id
	case len(p.names) >= maxPaths || len(path) > maxPathLength:
		return otherPath
	}
	return p.add(path)
}

// peaks has the highest level that each open section has seen. A begin or an end takes a few steps,
// however many sections are open.
//
// A section that began later has seen less, so its peak is not higher. In the order in which they
// began, the sections therefore form runs with equal peaks, each run lower than the one before. A
// new level can only raise the last runs: a run joins the one before it when it has reached the
// same peak.
type peaks struct {
	youngest *run
}

// run is neighbouring sections with the same peak. Each section begins as its own run; when runs
// are joined, one refers to the other.
type run struct {
	peak           alloc.Bytes
	open           int  // its sections
	within         *run // the older run that it is part of
	older, younger *run
}

// begin enters the run of a section that begins at the level.
func (p *peaks) begin(r *run, level alloc.Bytes) {
	r.peak, r.open = level, 1
	if r.older = p.youngest; r.older != nil {
		r.older.younger = r
	}
	p.youngest = r
	p.raise(level)
}

// raise raises the peaks of all open sections to the level, at least.
func (p *peaks) raise(level alloc.Bytes) {
	r := p.youngest
	if r == nil {
		return
	}
	r.peak = max(r.peak, level)
	for older := r.older; older != nil && older.peak <= r.peak; older = r.older {
		older.peak = r.peak
		older.open += r.open
		older.younger = nil
		r.within, r.older = older, nil
		r = older
	}
	p.youngest = r
}

// end takes a section out, and returns its peak.
func (p *peaks) end(r *run) alloc.Bytes {
	r = r.whole()
	r.open--
	if r.open > 0 {
		return r.peak
	}
	if r.older != nil {
		r.older.younger = r.younger
	}
	if r.younger != nil {
		r.younger.older = r.older
	} else {
		p.youngest = r.older
	}
	r.older, r.younger = nil, nil
	return r.peak
}

// whole returns the run that r is part of by now.
func (r *run) whole() *run {
	for r.within != nil {
		if r.within.within != nil {
			r.within = r.within.within
		}
		r = r.within
	}
	return r
}

func placeOf(stack tables.StackID, in *section, stream uint8) ledger.Place {
	return ledger.Place{Place: tables.Place{Stack: stack, Section: in.pathID()}, Stream: stream}
}
