package tracker

import (
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// section is what the tracker knows of a Section.
type section struct {
	stack     snapshot.StackID
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

func (s *section) event(action snapshot.Action, since time.Duration) snapshot.EventEntry {
	return snapshot.EventEntry{Since: since, Action: action, Section: uint16(s.id), Stack: s.stack, Allocated: alloc.Bytes(s.span)}
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
	allocated, freed snapshot.Tally
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
