package tracker

import (
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// sections are the open sections, and what the closed ones came to. The
// tracker's mutex guards all but open; config and timer never change.
type sections struct {
	config SectionConfig
	timer  alloc.Timer  // nil if the device is none, or is not to be asked
	open   atomic.Int32 // while it is 0, nobody looks for the goroutine's section

	paths     paths
	stats     []pathStats         // by path
	innermost map[uint64]*Section // of each goroutine that has one open
	youngest  *Section            // of the open ones, in the order of their beginnings
	spans     uint64              // sections ever
	timing    []*deviceTime       // of ended sections, not read yet
}

// high is the highest levels of a stretch of time.
type high struct {
	gpu  alloc.Bytes // requested bytes of the live buffers
	host alloc.Bytes // resident set; 0 unless the kernel's mark is reset at each section
}

func (h *high) raise(to high) { h.gpu, h.host = max(h.gpu, to.gpu), max(h.host, to.host) }

func (s *sections) init(cfg SectionConfig, device alloc.Device) {
	s.config = cfg
	if !cfg.NoDeviceTime {
		s.timer, _ = alloc.As[alloc.Timer](device)
	}
	s.reset()
}

// reset forgets everything, and returns the device times that are still to be read.
func (s *sections) reset() (timing []*deviceTime) {
	timing = s.timing
	s.open.Store(0)
	s.paths = newPaths()
	s.stats = make([]pathStats, len(s.paths.names))
	s.innermost = make(map[uint64]*Section)
	s.youngest = nil
	s.timing = nil
	return timing
}

// host measures the process, if it is to.
func (s *sections) host() hostMemory {
	if s.config.NoHost {
		return hostMemory{resident: -1, peak: -1, heap: -1}
	}
	return readHost()
}

// path returns the number of a path.
func (s *sections) path(name string) uint32 {
	id := s.paths.at(name)
	if int(id) == len(s.stats) {
		s.stats = append(s.stats, pathStats{})
	}
	return id
}

// goroutine returns the calling goroutine's number if any section is open,
// and 0 otherwise: all that sections cost a program that has none.
func (s *sections) goroutine() uint64 {
	if s.open.Load() == 0 {
		return 0
	}
	return callstack.Goroutine()
}

// at returns the goroutine's innermost section; nil if it is in none.
func (s *sections) at(goroutine uint64) *Section {
	if goroutine == 0 {
		return nil
	}
	return s.innermost[goroutine]
}

// pathID returns the path of a section, of which nil is the outside of all.
func (in *Section) pathID() uint32 {
	if in == nil {
		return noPath
	}
	return in.id
}

// allocated counts bytes in a section and in all that it is part of.
func (s *sections) allocated(in *Section, bytes alloc.Bytes) {
	s.stats[in.id].live.add(1, bytes)
	for ; in != nil; in = in.parent {
		in.own.allocate(bytes)
	}
}

// freed counts bytes that came from the path and were freed by the goroutine. A
// free that failed is counted back: n is then -1, otherwise 1.
func (s *sections) freed(goroutine uint64, path uint32, n int64, bytes alloc.Bytes) {
	bytes *= alloc.Bytes(n)
	if path != noPath {
		s.stats[path].live.add(-n, -bytes)
	}
	for in := s.innermost[goroutine]; in != nil; in = in.parent {
		in.own.freed.add(n, bytes)
	}
}

// begin makes in the youngest section and its goroutine's innermost. l is at
// the level of now.
//
// Each open section keeps the highest level of the time in which no younger one
// was open. So an allocation raises one counter (ledger.high), whatever is open,
// and a section's peak is the highest of its own and all younger ones'.
func (s *sections) begin(in *Section, l *ledger) {
	s.spans++
	in.span = s.spans
	in.outer = s.innermost[in.goroutine]
	s.innermost[in.goroutine] = in
	s.raise(l)
	in.high.gpu = l.current.Bytes
	if in.older = s.youngest; in.older != nil {
		in.older.younger = in
	}
	s.youngest = in
	s.open.Add(1)
}

// end takes in out, and returns its peaks.
func (s *sections) end(in *Section, l *ledger) high {
	s.raise(l)
	peak := in.peak()
	if in.older != nil {
		in.older.high.raise(in.high)
		in.older.younger = in.younger
	}
	if in.younger != nil {
		in.younger.older = in.older
	} else {
		s.youngest = in.older
	}
	s.leave(in)
	in.older, in.younger, in.outer = nil, nil, nil
	s.open.Add(-1)
	return peak
}

// peak is the highest levels so far, if the youngest's are up to date.
func (in *Section) peak() (peak high) {
	for y := in; y != nil; y = y.younger {
		peak.raise(y.high)
	}
	return peak
}

// raise brings the youngest section's levels up to date.
func (s *sections) raise(l *ledger) {
	h := high{gpu: l.high}
	if s.config.ResetHostPeak {
		h.host = resetHostPeak()
	}
	if s.youngest != nil {
		s.youngest.high.raise(h)
	}
	l.high = l.current.Bytes
}

// leave takes in out of its goroutine's open sections, of which it need not be
// the innermost.
func (s *sections) leave(in *Section) {
	inner := s.innermost[in.goroutine]
	switch {
	case inner != in:
		for inner.outer != in {
			inner = inner.outer
		}
		inner.outer = in.outer
	case in.outer != nil:
		s.innermost[in.goroutine] = in.outer
	default:
		delete(s.innermost, in.goroutine)
	}
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
