package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// begin brings the allocator into the state before the first event.
func (m *machine) begin() (*failure, error) {
	if m.layout = m.recordedLayout(); m.layout == layoutRecorded {
		oom, ok := m.fillSegments()
		if oom != nil {
			return oom, nil
		}
		if !ok { // it cannot have been this allocator
			if err := m.clear(); err != nil {
				return nil, err
			}
			m.layout = layoutPacked
		}
	}
	for i := range m.begun {
		if b := &m.buffers[i]; b.foreign || m.layout != layoutRecorded {
			if err := m.alloc(int32(i)); err != nil && !errors.Is(err, errFailed) {
				return nil, fmt.Errorf("replay: the state before the first event: %w", err)
			} else if err != nil {
				return m.tooSmall(m.start.Allocated), nil
			}
		} else {
			m.levels.add(b.requested, m.sizes[i], false)
			m.live++
		}
	}
	m.levels.peak()
	m.levels.Retries = 0
	m.dev.allocs, m.dev.frees = 0, 0
	clear(m.dev.calls)
	return nil, nil
}

func (m *machine) recordedLayout() string {
	switch {
	case m.begun == 0 && len(m.start.Segments) == 0:
		return layoutEmpty
	case m.cfg.packed || m.cfg.Allocator != caching || len(m.start.Segments) == 0:
		return layoutPacked
	}
	return layoutRecorded
}

// tooSmall is the failure of a device that cannot hold what there was in the beginning.
func (m *machine) tooSmall(n alloc.Bytes) *failure {
	return &failure{Event: m.first, Beginning: true, Requested: n, Free: m.dev.total}
}

// fillSegments makes the recorded segments, by requests alone. It fills each segment to its last
// byte before it begins the next, so that there is at most one free block and best fit has no
// choice. If there is no room for all segments, it leaves out the free ones: an allocator would
// have given them back. It reports whether the allocator could make them.
func (m *machine) fillSegments() (oom *failure, ok bool) {
	var all, used alloc.Bytes
	for _, s := range m.start.Segments {
		all += s.Size
		if inUse(s) {
			used += s.Size
		}
	}
	room := m.dev.total - m.start.Registered
	if used > room {
		return m.tooSmall(used + m.start.Registered), true
	}
	var holes []func() error
	for _, s := range m.start.Segments {
		if all > room && !inUse(s) {
			continue
		}
		if err := m.fillSegment(s, &holes); err != nil {
			return nil, false
		}
	}
	for _, free := range holes {
		if free() != nil {
			return nil, false
		}
	}
	return nil, true
}

func inUse(s alloc.Segment) bool {
	for _, b := range s.Blocks {
		if b.State != alloc.Inactive {
			return true
		}
	}
	return false
}

func (m *machine) fillSegment(s alloc.Segment, holes *[]func() error) error {
	const splitLimit = 1 * alloc.MiB
	i := slices.Index(m.arenas, arenaOf(s))
	if i < 0 {
		return fmt.Errorf("stream %d has no buffers", s.Stream)
	}
	cache := m.caches[i]
	m.dev.recorded = append(m.dev.recorded[:0], place{s.Ptr, s.Size})
	if s.Pool == "large" { // one request of the whole size makes the driver give just that
		p, err := cache.Alloc(s.Size)
		if err != nil || p != s.Ptr {
			return fmt.Errorf("a segment of %v: %w", s.Size, err)
		}
		if err := cache.Free(p); err != nil {
			return err
		}
	}
	for _, b := range s.Blocks {
		for at := b.Ptr; at < b.Ptr+alloc.Ptr(b.Size); {
			size := alloc.Bytes(b.Ptr + alloc.Ptr(b.Size) - at)
			if s.Pool == "small" {
				size = min(size, splitLimit) // more would be asked of the large pool
			}
			p, allocated, err := cache.AllocOn(size, 0)
			if err != nil || p != at || allocated != size {
				return fmt.Errorf("a piece of %v: %w", size, err)
			}
			if b.State == alloc.Inactive {
				*holes = append(*holes, func() error { return cache.Free(p) })
			}
			at += alloc.Ptr(size)
		}
	}
	for _, b := range s.Blocks {
		if b.State == alloc.Inactive {
			continue
		}
		i, ok := m.at[b.Ptr]
		if !ok {
			return fmt.Errorf("a block at %v without a buffer", b.Ptr)
		}
		m.ptrs[i], m.sizes[i] = b.Ptr, b.Size
	}
	return nil
}
