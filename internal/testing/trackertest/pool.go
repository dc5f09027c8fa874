package trackertest

import (
	"errors"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// pool is where memory comes from, and what its statistics should say: a cache, or the bare device, which has
// none.
type pool struct {
	device *device
	cache  *cache.Cache // nil for the bare device

	mu        sync.Mutex
	requested alloc.Usage
	ooms      int64
}

// take is other code that takes memory.
func (p *pool) take(n alloc.Bytes) (alloc.Ptr, error) {
	if p.cache == nil {
		p.device.mu.Lock()
		defer p.device.mu.Unlock()
		return p.device.take(n)
	}
	ptr, err := p.cache.Alloc(n)
	p.asked(n, err)
	return ptr, err
}

// give is other code that gives memory back.
func (p *pool) give(ptr alloc.Ptr, n alloc.Bytes) error {
	if p.cache == nil {
		return p.device.give(ptr)
	}
	err := p.cache.Free(ptr)
	if err == nil {
		p.gave(n)
	}
	return err
}

// asked counts an allocation, or that there was no memory for it.
func (p *pool) asked(n alloc.Bytes, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		rise(&p.requested.Bytes, n)
		rise(&p.requested.Count, 1)
	case errors.Is(err, alloc.ErrOutOfMemory):
		p.ooms++
	}
}

func rise[T ~int64](g *alloc.Gauge[T], n T) {
	g.Current += n
	g.Total += n
	g.Peak = max(g.Peak, g.Current)
}

// gave counts a free.
func (p *pool) gave(n alloc.Bytes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requested.Bytes.Current -= n
	p.requested.Count.Current--
}

// has reports whether an address is allocated.
func (p *pool) has(ptr alloc.Ptr) bool {
	if p.cache == nil {
		return p.device.has(ptr)
	}
	for s := range p.cache.Segments() {
		for _, b := range s.Blocks {
			if b.Ptr == ptr && b.State == alloc.Allocated {
				return true
			}
		}
	}
	return false
}

func (p *pool) resetPeak() {
	p.requested.Bytes.Peak, p.requested.Count.Peak = p.requested.Bytes.Current, p.requested.Count.Current
}

func (p *pool) reserved() (n alloc.Bytes) {
	if p.cache != nil {
		n = p.cache.Stats().Reserved.Bytes.Current
	}
	return n
}

// check compares a cache with the memory of it that is held, and returns what the driver
// should list as its own: its segments, or the memory itself. Peaks are compared if the order of all that
// was done is known, and statistics if nobody takes what nobody counts.
func (p *pool) check(t require.TestingT, held map[alloc.Ptr]alloc.Bytes, ordered, counted bool) map[alloc.Ptr]alloc.Bytes {
	if p.cache == nil {
		return held
	}
	cachetest.Invariants(t, p.cache)
	segments, blocks := make(map[alloc.Ptr]alloc.Bytes), make(map[alloc.Ptr]alloc.Bytes)
	for s := range p.cache.Segments() {
		segments[s.Ptr] = s.Size
		for _, b := range s.Blocks {
			if b.State == alloc.Allocated {
				blocks[b.Ptr] = b.Requested
			}
		}
	}
	same(t, held, blocks, "blocks in callers' hands")
	got, want := p.cache.Stats(), p.requested
	if !ordered {
		want.Bytes.Peak, want.Count.Peak = got.Requested.Bytes.Peak, got.Requested.Count.Peak
	}
	if counted {
		require.Equal(t, want, got.Requested)
		require.Equal(t, want.Count, got.Allocated.Count)
		require.Equal(t, p.ooms, got.OOMs)
	}
	return segments
}
