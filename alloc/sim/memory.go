package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const (
	// granule is the unit of allocations smaller than a page, and the alignment
	// of every address.
	granule         = alloc.Bytes(512)
	granulesPerPage = uint64(pageSize / granule)

	// Each ordinal has an address range of its own, wider than any memory, so
	// that memory runs out before addresses do. The first starts above zero.
	addressBits    = 42
	pagesOfAddress = uint64(1) << addressBits / uint64(pageSize)
	maxOrdinal     = 1<<(64-addressBits) - 2
)

// pagesOf returns the pages that n bytes take.
func pagesOf(n alloc.Bytes) uint64 {
	return (uint64(n) + uint64(pageSize) - 1) / uint64(pageSize)
}

// wholePages rounds an amount up to whole pages.
func wholePages(n alloc.Bytes) alloc.Bytes {
	return alloc.Bytes(pagesOf(min(max(n, 0), maxMemory))) * pageSize
}

// run is consecutive pages: the pages of one allocation, or one page that small allocations share.
type run struct {
	pages span
	small *space // the free granules of a shared page; else nil
	data  []byte // host memory behind it, since it was first copied to or from
}

// allocation is what the device keeps of one live address.
type allocation struct {
	size alloc.Bytes // as requested, before rounding
	run  *run
}

// memory is the device's address space, with the live allocations in it. The caller holds the
// device's lock.
type memory struct {
	base     alloc.Ptr
	backed   bool
	pages    *space
	runs     []*run // in address order
	live     map[alloc.Ptr]allocation
	given    map[alloc.Ptr]struct{} // every address ever given
	reserved map[alloc.Ptr]*reservation
	taken    uint64      // pages in use
	size     alloc.Bytes // requested bytes that are live
}

func newMemory(ordinal int, backed bool) *memory {
	return &memory{
		base:   alloc.Ptr(ordinal+1) << addressBits,
		backed: backed,
		pages:  newSpace(pagesOfAddress),
		live:   make(map[alloc.Ptr]allocation),
		given:  make(map[alloc.Ptr]struct{}),

		reserved: make(map[alloc.Ptr]*reservation),
	}
}

// alloc allocates n bytes if that takes no more than limit further pages.
func (m *memory) alloc(n alloc.Bytes, limit uint64) (alloc.Ptr, bool) {
	r, granules := (*run)(nil), max(uint64((n+granule-1)/granule), 1)
	offset := uint64(0)
	ok := false
	if n < pageSize {
		r, offset, ok = m.share(granules)
	}
	if !ok {
		if r, ok = m.newRun(max(pagesOf(n), 1), limit); !ok {
			return 0, false
		}
		if n < pageSize {
			r.small = newSpace(granulesPerPage)
			offset, _ = r.small.take(granules)
		}
	}
	p := m.address(r) + alloc.Ptr(offset)*alloc.Ptr(granule)
	m.live[p] = allocation{size: n, run: r}
	m.given[p] = struct{}{}
	m.size += n
	return p, true
}

// share takes granules from the lowest shared page that has enough.
func (m *memory) share(granules uint64) (*run, uint64, bool) {
	for _, r := range m.runs {
		if r.small == nil {
			continue
		}
		if offset, ok := r.small.take(granules); ok {
			return r, offset, true
		}
	}
	return nil, 0, false
}

// newRun takes pages from the device, if it has them.
func (m *memory) newRun(pages, limit uint64) (*run, bool) {
	if pages > limit {
		return nil, false
	}
	first, ok := m.pages.take(pages)
	if !ok {
		return nil, false
	}
	r := &run{pages: span{first, pages}}
	i, _ := m.search(first)
	m.runs = slices.Insert(m.runs, i, r)
	m.taken += pages
	return r, true
}

// free takes a live address back.
func (m *memory) free(p alloc.Ptr) {
	a := m.live[p]
	delete(m.live, p)
	m.size -= a.size
	if a.run.small != nil {
		granules := max(uint64((a.size+granule-1)/granule), 1)
		a.run.small.give(span{uint64(p-m.address(a.run)) / uint64(granule), granules})
		if a.run.small.holes[0].n < granulesPerPage {
			return
		}
	}
	m.pages.give(a.run.pages)
	m.taken -= a.run.pages.n
	i, _ := m.search(a.run.pages.first)
	m.runs = slices.Delete(m.runs, i, i+1)
}

// find returns the n bytes of host memory at p, which may lie inside an
// allocation but must not leave it.
func (m *memory) find(p alloc.Ptr, n int) ([]byte, bool) {
	if p < m.base {
		return nil, false
	}
	i, exact := m.search(uint64(p-m.base) / uint64(pageSize))
	if !exact {
		i--
	}
	if i < 0 {
		return nil, false
	}
	r := m.runs[i]
	first := m.address(r)
	start := first
	if r.small != nil { // the nearest live address at or before p
		for start = p - p%alloc.Ptr(granule); start > first; start -= alloc.Ptr(granule) {
			if _, ok := m.live[start]; ok {
				break
			}
		}
	}
	a, ok := m.live[start]
	if !ok || p < start || uint64(p-start) > uint64(a.size) || uint64(n) > uint64(a.size)-uint64(p-start) {
		return nil, false
	}
	if r.data == nil && m.backed {
		r.data = make([]byte, r.pages.n*uint64(pageSize))
	}
	if r.data == nil {
		return nil, true
	}
	return r.data[p-first:][:n], true
}

// write does what work writes that is done.
func (m *memory) write(done []queued) {
	for _, q := range done {
		if !q.fill || !m.backed || q.Size > alloc.Bytes(math.MaxInt) {
			continue
		}
		if data, ok := m.find(q.Ptr, int(q.Size)); ok {
			for i := range data {
				data[i] = q.value
			}
		}
	}
}

func (m *memory) address(r *run) alloc.Ptr {
	return m.base + alloc.Ptr(r.pages.first)*alloc.Ptr(pageSize)
}

// search finds the run that starts at a page, or where it would be.
func (m *memory) search(page uint64) (int, bool) {
	return slices.BinarySearchFunc(m.runs, page, func(r *run, page uint64) int {
		return cmp.Compare(r.pages.first, page)
	})
}

// span is a run of n units that starts at unit first.
type span struct{ first, n uint64 }

func (s span) end() uint64 { return s.first + s.n }

// space allocates spans of a range of units, the lowest first. It keeps the holes in order; no two
// of them touch.
type space struct{ holes []span }

func newSpace(units uint64) *space { return &space{holes: []span{{0, units}}} }

// take fills the lowest hole that has n units, and returns its start.
func (s *space) take(n uint64) (first uint64, ok bool) {
	for i, hole := range s.holes {
		switch {
		case hole.n > n:
			s.holes[i] = span{hole.first + n, hole.n - n}
			return hole.first, true
		case hole.n == n:
			s.holes = slices.Delete(s.holes, i, i+1)
			return hole.first, true
		}
	}
	return 0, false
}

// give makes a span that was taken a hole again.
func (s *space) give(freed span) {
	i, _ := slices.BinarySearchFunc(s.holes, freed.first, func(hole span, first uint64) int {
		return cmp.Compare(hole.first, first)
	})
	before, after := i, i // the holes that freed touches, and is joined with
	if i > 0 && s.holes[i-1].end() == freed.first {
		before--
		freed = span{s.holes[before].first, s.holes[before].n + freed.n}
	}
	if i < len(s.holes) && freed.end() == s.holes[i].first {
		freed.n += s.holes[i].n
		after++
	}
	s.holes = slices.Replace(s.holes, before, after, freed)
}
