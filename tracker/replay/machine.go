package replay

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// machine runs a program once.
type machine struct {
	*program
	cfg      Config
	dev      *device
	caches   []*cache.Cache // by arena
	retried  bool           // a cache was emptied for the present request
	levels   Levels
	ptrs     []alloc.Ptr    // address of each buffer
	sizes    []alloc.Bytes  // size of each block
	pending  map[int32]bool // buffers that are freed, whose memory may be in use
	layout   string
	live     int         // buffers
	compared *comparison // nil if nothing is compared with the recording
	work     int64       // what emptying caches cost so far: each time all segments and buffers
}

// maxWork bounds the work that a hostile history can cause, to some seconds.
const maxWork = 1 << 28

// countTrim adds the cost of emptying the caches once. It fails if a history causes too much of it.
func (m *machine) countTrim() error {
	m.work += int64(len(m.dev.held) + len(m.dev.made) + m.live)
	if m.work > maxWork {
		return fmt.Errorf("its caches are emptied over and over with %d buffers live: it would take too long", m.live)
	}
	return nil
}

// errFailed means that a request does not fit. It ends the replay, which is not a failure of the
// replay itself.
var errFailed = errors.New("out of memory")

func newMachine(p *program, cfg Config) (*machine, error) {
	m := &machine{program: p, cfg: cfg, ptrs: make([]alloc.Ptr, len(p.buffers)), sizes: make([]alloc.Bytes, len(p.buffers))}
	return m, m.clear()
}

// clear makes the device and the caches new.
func (m *machine) clear() error {
	m.dev = newDevice(m.cfg.Memory)
	if m.compared != nil {
		m.compareWithRecorded()
	}
	m.caches, m.pending = nil, make(map[int32]bool)
	if m.cfg.Allocator == driver {
		return nil
	}
	conf := m.cfg.Conf
	conf.ExpandableSegments = m.cfg.Allocator == expandable
	for range m.arenas {
		c, err := cache.New(m.dev, conf)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		c.Locked().Notify(func(e cachelock.Event) { m.retried = m.retried || e.Action == cachelock.Retry }, nil)
		m.caches = append(m.caches, c)
	}
	return nil
}

func (m *machine) step(o *op) error {
	switch o.do {
	case opAlloc:
		err := m.alloc(o.buffer)
		m.dev.recorded = m.dev.recorded[:0]
		if b := &m.buffers[o.buffer]; err == nil && m.compared != nil && !b.foreign {
			m.compared.served(m.dev.recordedAt(m.ptrs[o.buffer]) == b.ptr)
		}
		return err
	case opFree, opFreePending:
		return m.free(o.buffer, o.do == opFreePending)
	case opFreeCompleted:
		return m.reuse(o.buffer)
	case opEmpty:
		return m.empty(-1)
	case opRetry:
		if m.cfg.Memory > 0 { // the replay's cache finds out itself when it has to
			return nil
		}
		return m.empty(-1)
	case opFailed:
		if m.compared != nil { // it failed, and changed nothing
			return nil
		}
		return m.try(o)
	case opDriverAlloc:
		m.dev.recorded = append(m.dev.recorded, place{o.ptr, o.bytes})
		m.recordedCall(o.bytes)
	case opDriverFree:
		m.recordedCall(-o.bytes)
	}
	return nil
}

// compareWithRecorded makes the machine compare its driver calls and addresses with those of the recording.
func (m *machine) compareWithRecorded() {
	m.compared = newComparison()
	m.dev.calls = m.compared.made
}

// recordedCall counts a driver call of the recording.
func (m *machine) recordedCall(change alloc.Bytes) {
	if m.compared != nil {
		m.compared.recorded[change]++
	}
}

// block is the size of a request's block of the driver's.
func block(n alloc.Bytes) alloc.Bytes { return (max(n, 1) + 511) &^ 511 }

func (m *machine) alloc(i int32) error {
	b := &m.buffers[i]
	switch {
	case b.foreign:
		if m.sizes[i] = max(b.allocated, 0); m.sizes[i] > m.dev.free() {
			return errFailed
		}
		m.dev.foreign += m.sizes[i]
	default:
		var err error
		if m.ptrs[i], m.sizes[i], err = m.request(int(b.arena), b.requested); err != nil {
			return err
		}
	}
	m.live++
	m.levels.add(b.requested, m.sizes[i], b.foreign)
	m.levels.peak()
	return nil
}

// request asks the allocator.
func (m *machine) request(arena int, n alloc.Bytes) (p alloc.Ptr, size alloc.Bytes, err error) {
	if m.cfg.Allocator == driver {
		if n > math.MaxInt64/2 || m.dev.take(block(n)) != nil {
			return 0, 0, errFailed
		}
		return 0, block(n), nil
	}
	m.retried = false
	p, size, err = m.caches[arena].AllocOn(n, 0)
	if errors.Is(err, alloc.ErrOutOfMemory) && len(m.caches)+len(m.pending) > 1 {
		if err := m.empty(arena); err != nil {
			return 0, 0, err
		}
		p, size, err = m.caches[arena].AllocOn(n, 0)
	}
	if m.retried {
		m.levels.Retries++
		if tooMuch := m.countTrim(); tooMuch != nil {
			return 0, 0, tooMuch
		}
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		err = errFailed
	}
	return p, size, err
}

// free frees a buffer. With pending, a cache gets its memory only at opFreeCompleted.
func (m *machine) free(i int32, pending bool) error {
	b := &m.buffers[i]
	size := m.sizes[i]
	m.levels.add(-b.requested, -size, b.foreign)
	m.live--
	switch {
	case b.foreign:
		m.dev.foreign -= size
	case m.cfg.Allocator == driver:
		m.dev.giveBack(size) // a driver's free waits until the memory is no longer used
	case pending:
		m.pending[i] = true
		return nil
	default:
		m.sizes[i] = 0
		return m.caches[b.arena].Free(m.ptrs[i])
	}
	m.sizes[i] = 0
	return nil
}

// reuse returns the memory of a pending buffer to its cache.
func (m *machine) reuse(i int32) error {
	if !m.pending[i] { // completed when a cache was emptied
		return nil
	}
	delete(m.pending, i)
	m.sizes[i] = 0
	return m.caches[m.buffers[i].arena].Free(m.ptrs[i])
}

// try makes a request that failed when it was recorded, and frees it at once: the program did not get the memory.
func (m *machine) try(o *op) error {
	p, size, err := m.request(int(o.buffer), o.bytes)
	switch {
	case err != nil:
		return err
	case m.cfg.Allocator == driver:
		m.dev.giveBack(size)
	default:
		err = m.caches[o.buffer].Free(p)
	}
	m.levels.add(o.bytes, size, false)
	m.levels.peak()
	m.levels.add(-o.bytes, -size, false)
	return err
}

// empty empties all caches except the one at index but and those of private pools. No memory may be
// pending.
func (m *machine) empty(but int) error {
	if err := m.countTrim(); err != nil {
		return err
	}
	var errs []error
	for _, i := range slices.Sorted(maps.Keys(m.pending)) {
		errs = append(errs, m.reuse(i))
	}
	for i, c := range m.caches {
		if i != but && m.arenas[i].private == "" {
			_, err := c.Trim()
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// oom describes the state in which a request failed.
func (m *machine) oom(o *op) *failure {
	event := m.first + uint64(o.event)
	e := &failure{Event: event, Requested: o.bytes, CallSite: tables.OfHistory(&m.dump.History).Site(event)}
	arena := int(o.buffer)
	if o.do == opAlloc {
		e.Requested, arena = m.buffers[o.buffer].requested, int(m.buffers[o.buffer].arena)
	}
	e.Free, e.Reserved, e.Allocated, e.Others = m.dev.free(), m.dev.reserved, m.levels.allocated, m.dev.foreign
	e.Inactive = e.Reserved - e.Allocated
	for i := range m.pending {
		e.Inactive -= m.sizes[i]
	}
	if len(m.caches) > 0 {
		e.LargestInactive = m.caches[arena].Stats().LargestInactive
	}
	return e
}

// run runs the program to its end, or to the first request that fails, which it returns.
func (m *machine) run() (*failure, error) {
	if oom, err := m.begin(); oom != nil || err != nil {
		return oom, err
	}
	for i := range m.ops {
		o := &m.ops[i]
		if err := m.step(o); errors.Is(err, errFailed) {
			return m.oom(o), nil
		} else if err != nil {
			return nil, fmt.Errorf("replay: event %d: %w", m.first+uint64(o.event), err)
		}
	}
	return nil, nil
}

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
				return m.tooSmall(m.start.Allocated), nil //nolint:nilerr // that the program does not fit is the answer
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

// tooSmall is the failure of a device that cannot hold n bytes of the state before the first event.
func (m *machine) tooSmall(n alloc.Bytes) *failure {
	return &failure{Event: m.first, Beginning: true, Requested: n, Free: m.dev.total}
}

// fillSegments makes the recorded segments, by requests alone. It fills each segment to its last
// byte before it begins the next, so that there is at most one free block and best fit has no
// choice. If not all segments fit, it leaves out the free ones, which an
// allocator would have released. It reports whether the allocator could make them.
func (m *machine) fillSegments() (oom *failure, ok bool) {
	var all, used alloc.Bytes
	for _, s := range m.start.Segments {
		all += s.Size
		if inUse(s) {
			used += s.Size
		}
	}
	available := m.dev.total - m.start.Registered
	if used > available {
		return m.tooSmall(used + m.start.Registered), true
	}
	var holes []func() error
	for _, s := range m.start.Segments {
		if all > available && !inUse(s) {
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
