package cachetest

import (
	"cmp"
	"errors"
	"math"
	"math/bits"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// Naive is PyTorch's caching allocator as plainly as it can be written: sorted lists that
// are searched from one end to the other, for one caller at a time. Whoever changes cache.Cache
// compares it with this. It was written from c10/cuda/CUDACachingAllocator.cpp, not from the
// Cache.
type Naive struct {
	dev      capability.VirtualDevice
	events   capability.EventDevice // nil if the device has none
	cfg      cache.Config
	segments []*naiveSegment // by address
	clock    int             // requests for large blocks
	Reserved alloc.Bytes
	// Finished, if not nil, is told of each block that becomes free.
	Finished func(p alloc.Ptr)
}

type naiveSegment struct {
	ptr    alloc.Ptr
	small  bool
	stream alloc.Stream
	blocks []*naiveBlock
}

type naiveBlock struct {
	ptr       alloc.Ptr
	size      alloc.Bytes
	requested alloc.Bytes
	used      bool               // allocated or pending
	users     []alloc.Stream     // the other streams that use it
	pending   []capability.Event // that have not passed
	unmapped  bool
	since     int // the clock when it became free
}

// place is a block in its segment.
type place struct {
	*naiveSegment
	at int
}

func (p place) block() *naiveBlock { return p.blocks[p.at] }

// near returns the block some places further on, or nil.
func (p place) near(offset int) *naiveBlock {
	if i := p.at + offset; i >= 0 && i < len(p.blocks) {
		return p.blocks[i]
	}
	return nil
}

// NewNaive returns an allocator over dev.
func NewNaive(dev capability.VirtualDevice, cfg cache.Config) *Naive {
	cfg.MaxSplitSize = cmp.Or(cfg.MaxSplitSize, math.MaxInt64)
	cfg.MaxNonSplitRounding = cmp.Or(cfg.MaxNonSplitRounding, 20*alloc.MiB)
	events, _ := alloc.As[capability.EventDevice](dev)
	return &Naive{dev: dev, events: events, cfg: cfg}
}

func ceil(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) / unit * unit }

func (a *Naive) round(n alloc.Bytes) alloc.Bytes {
	if n < 512 {
		return 512
	}
	floor := alloc.Bytes(1) << (bits.Len64(uint64(n)) - 1)
	at := 0
	for at < 15 && floor >= 2*alloc.MiB<<at {
		at++
	}
	if d := alloc.Bytes(a.cfg.Roundup[at]); d > 1 && n > 512*d {
		return ceil(n, floor/d)
	}
	return ceil(n, 512)
}

func chunk(small bool) alloc.Bytes {
	if small {
		return 2 * alloc.MiB
	}
	return 20 * alloc.MiB
}

// free returns the free blocks of a pool, by stream, size and address.
func (a *Naive) free(small bool) (free []place) {
	for _, s := range a.segments {
		for i, b := range s.blocks {
			if s.small == small && !b.used && !b.unmapped {
				free = append(free, place{s, i})
			}
		}
	}
	slices.SortFunc(free, func(p, q place) int {
		return cmp.Or(cmp.Compare(p.stream, q.stream), cmp.Compare(p.block().size, q.block().size), cmp.Compare(p.block().ptr, q.block().ptr))
	})
	return free
}

// Alloc gives n bytes for the default stream.
func (a *Naive) Alloc(n alloc.Bytes) (alloc.Ptr, error) { return a.AllocOn(n, 0) }

// AllocOn gives n bytes for a stream.
func (a *Naive) AllocOn(n alloc.Bytes, on alloc.Stream) (alloc.Ptr, error) {
	a.complete(capability.Event.Done)
	size := a.round(n)
	small := size <= alloc.MiB
	if !small {
		a.clock++
	}
	p, ok := a.fit(small, size, on)
	if !ok {
		a.collect()
		if p, ok = a.grow(small, size, on); !ok && a.giveBackLarge(small, size, on) {
			p, ok = a.grow(small, size, on)
		}
		if !ok {
			a.Trim()
			p, ok = a.grow(small, size, on)
		}
		if !ok { // PyTorch does not look again for what has become free meanwhile
			p, ok = a.fit(small, size, on)
		}
	}
	if !ok {
		return 0, alloc.ErrOutOfMemory
	}
	b := p.block()
	rest := b.size - size
	if rest >= 512 && (small || a.cfg.ExpandableSegments || rest > alloc.MiB && size < a.cfg.MaxSplitSize) {
		tail := &naiveBlock{ptr: b.ptr + alloc.Ptr(size), size: rest, since: a.clock}
		p.naiveSegment.blocks = slices.Insert(p.blocks, p.at+1, tail)
		b.size = size
	}
	b.used, b.requested = true, n
	return b.ptr, nil
}

// fit finds a free block.
func (a *Naive) fit(small bool, size alloc.Bytes, on alloc.Stream) (place, bool) {
	free := a.free(small)
	free = slices.DeleteFunc(free, func(p place) bool { return p.stream != on || p.block().size < size })
	if len(free) == 0 {
		return place{}, false
	}
	growth := func(p place) alloc.Bytes {
		if next := p.near(1); next != nil && next.unmapped {
			return p.block().size + next.size
		}
		return p.block().size
	}
	at := 0
	for a.cfg.ExpandableSegments && at+1 < len(free) && growth(free[at+1]) < growth(free[at]) {
		at++
	}
	found, limit := free[at].block().size, a.cfg.MaxSplitSize
	if size < limit && found >= limit || size >= limit && found >= size+a.cfg.MaxNonSplitRounding {
		return place{}, false
	}
	return free[at], true
}

// limit is the most that may be held.
func (a *Naive) limit() alloc.Bytes {
	if a.cfg.MemoryFraction == 0 {
		return math.MaxInt64
	}
	info, _ := a.dev.MemInfo()
	return alloc.Bytes(a.cfg.MemoryFraction * float64(info.Total))
}

// grow asks the driver.
func (a *Naive) grow(small bool, size alloc.Bytes, on alloc.Stream) (place, bool) {
	segment := ceil(size, 2*alloc.MiB)
	if size < 10*alloc.MiB {
		segment = chunk(small)
	}
	if a.Reserved+segment > a.limit() {
		return place{}, false
	}
	if a.cfg.ExpandableSegments {
		return a.expand(small, size, on)
	}
	ptr, err := a.dev.Alloc(segment)
	if err != nil {
		return place{}, false
	}
	a.Reserved += segment
	return place{a.insert(ptr, small, on, &naiveBlock{ptr: ptr, size: segment, since: a.clock}), 0}, true
}

func (a *Naive) insert(ptr alloc.Ptr, small bool, on alloc.Stream, b *naiveBlock) *naiveSegment {
	s := &naiveSegment{ptr: ptr, small: small, stream: on, blocks: []*naiveBlock{b}}
	a.segments = append(a.segments, s)
	slices.SortFunc(a.segments, func(s, t *naiveSegment) int { return cmp.Compare(s.ptr, t.ptr) })
	return s
}

// expand finds the lowest run of free and unmapped blocks that is large enough, and maps what is
// missing there.
func (a *Naive) expand(small bool, size alloc.Bytes, on alloc.Stream) (place, bool) {
	for _, s := range a.segments {
		for i, b := range s.blocks {
			if s.small != small || s.stream != on || !b.unmapped {
				continue
			}
			if i > 0 && !s.blocks[i-1].used {
				i--
			}
			found := alloc.Bytes(0)
			for _, b := range s.blocks[i:] {
				if b.used || found >= size {
					break
				}
				found += b.size
			}
			if found >= size {
				return a.mapUpTo(place{s, i}, size)
			}
		}
	}
	info, _ := a.dev.MemInfo()
	reserved := ceil(info.Total+info.Total/8, chunk(small))
	if size > reserved {
		return place{}, false
	}
	ptr, err := a.dev.Reserve(reserved, chunk(small))
	if err != nil {
		return place{}, false
	}
	return a.mapUpTo(place{a.insert(ptr, small, on, &naiveBlock{ptr: ptr, size: reserved, unmapped: true}), 0}, size)
}

func (a *Naive) mapUpTo(p place, size alloc.Bytes) (place, bool) {
	for p.block().unmapped || p.block().size < size {
		missing, b := size, p.block()
		if !b.unmapped {
			missing, b = size-b.size, p.near(1)
		}
		missing = min(ceil(missing, chunk(p.small)), b.size)
		if a.dev.Map(b.ptr, missing) != nil {
			return place{}, false
		}
		a.Reserved += missing
		i := slices.Index(p.blocks, b)
		if missing < b.size {
			hole := &naiveBlock{ptr: b.ptr + alloc.Ptr(missing), size: b.size - missing, unmapped: true}
			p.naiveSegment.blocks = slices.Insert(p.blocks, i+1, hole)
		}
		b.size, b.unmapped, b.since = missing, false, a.clock
		p.join(a.clock)
	}
	return p, true
}

// join makes neighbours that are both free, or both unmapped, one.
func (s *naiveSegment) join(clock int) {
	for i := 0; i+1 < len(s.blocks); {
		b, next := s.blocks[i], s.blocks[i+1]
		if b.used || next.used || b.unmapped != next.unmapped {
			i++
			continue
		}
		b.size += next.size
		b.since = clock
		s.blocks = slices.Delete(s.blocks, i+1, i+2)
	}
}

// Free takes a block back.
func (a *Naive) Free(ptr alloc.Ptr) error {
	for _, s := range a.segments {
		for _, b := range s.blocks {
			if b.ptr != ptr || !b.used || len(b.pending) > 0 {
				continue
			}
			for _, user := range b.users {
				e, err := a.events.RecordEvent(user)
				if err != nil {
					return err
				}
				b.pending = append(b.pending, e)
			}
			if b.users = nil; len(b.pending) == 0 {
				a.finish(s, b)
			}
			return nil
		}
	}
	return errors.New("not a live block")
}

func (a *Naive) finish(s *naiveSegment, b *naiveBlock) {
	if a.Finished != nil {
		a.Finished(b.ptr)
	}
	b.used, b.requested, b.since = false, 0, a.clock
	s.join(a.clock)
}

// RecordStream says that work on a stream uses a block.
func (a *Naive) RecordStream(ptr alloc.Ptr, on alloc.Stream) {
	for _, s := range a.segments {
		for _, b := range s.blocks {
			if b.ptr == ptr && b.used && s.stream != on && !slices.Contains(b.users, on) {
				b.users = append(b.users, on)
			}
		}
	}
}

// complete frees pending blocks of which all events have passed.
func (a *Naive) complete(passed func(capability.Event) (bool, error)) {
	for _, s := range a.segments {
		for _, b := range slices.Clone(s.blocks) {
			if len(b.pending) == 0 {
				continue
			}
			b.pending = slices.DeleteFunc(b.pending, func(e capability.Event) bool {
				done, _ := passed(e)
				return done
			})
			if len(b.pending) == 0 {
				a.finish(s, b)
			}
		}
	}
}

// Trim waits for pending blocks, and gives back free segments.
func (a *Naive) Trim() {
	a.complete(func(e capability.Event) (bool, error) {
		err := e.Wait()
		return err == nil, err
	})
	for _, small := range []bool{false, true} {
		free := a.free(small)
		var blocks []*naiveBlock // whose places change
		for _, p := range free {
			blocks = append(blocks, p.block())
		}
		for i, p := range free {
			if a.cfg.ExpandableSegments {
				a.unmap(p.naiveSegment, blocks[i])
			} else if len(p.blocks) == 1 {
				a.giveBack(p)
			}
		}
	}
}

func (a *Naive) giveBack(p place) {
	if err := a.dev.Free(p.ptr); err != nil {
		panic(err)
	}
	a.Reserved -= p.block().size
	a.segments = slices.DeleteFunc(a.segments, func(s *naiveSegment) bool { return s == p.naiveSegment })
}

// unmap gives back the whole chunks of a free block.
func (a *Naive) unmap(s *naiveSegment, b *naiveBlock) {
	unit := alloc.Ptr(chunk(s.small))
	first := s.ptr + (b.ptr-s.ptr+unit-1)/unit*unit
	end := s.ptr + (b.ptr+alloc.Ptr(b.size)-s.ptr)/unit*unit
	if first >= end {
		return
	}
	size := alloc.Bytes(end - first)
	if err := a.dev.Unmap(first, size); err != nil {
		panic(err)
	}
	a.Reserved -= size
	i := slices.Index(s.blocks, b)
	parts := []*naiveBlock{
		{ptr: b.ptr, size: alloc.Bytes(first - b.ptr), since: a.clock},
		{ptr: first, size: size, unmapped: true},
		{ptr: end, size: alloc.Bytes(b.ptr + alloc.Ptr(b.size) - end), since: a.clock},
	}
	parts = slices.DeleteFunc(parts, func(b *naiveBlock) bool { return b.size == 0 })
	s.blocks = slices.Replace(s.blocks, i, i+1, parts...)
	s.join(a.clock)
	if len(s.blocks) == 1 && s.blocks[0].unmapped {
		a.segments = slices.DeleteFunc(a.segments, func(t *naiveSegment) bool { return s == t })
	}
}

// collect is garbage collection.
func (a *Naive) collect() {
	limit := alloc.Bytes(a.cfg.GarbageCollection * float64(a.limit()))
	if a.cfg.GarbageCollection == 0 || a.cfg.MemoryFraction == 0 || a.cfg.ExpandableSegments || a.Reserved <= limit {
		return
	}
	target := a.Reserved - limit
	free := slices.DeleteFunc(a.free(false), func(p place) bool { return len(p.blocks) > 1 })
	total := 0
	for _, p := range free {
		total += a.clock - p.block().since
	}
	for reclaimed, freed := alloc.Bytes(0), true; reclaimed < target && freed && len(free) > 0; {
		threshold := float64(total) / float64(len(free))
		freed = false
		free = slices.DeleteFunc(free, func(p place) bool {
			age := a.clock - p.block().since
			if float64(age) < threshold {
				return false
			}
			freed = true
			reclaimed += p.block().size
			total -= age
			a.giveBack(p)
			return true
		})
	}
}

// giveBackLarge gives back oversize blocks of a stream, enough for a request.
func (a *Naive) giveBackLarge(small bool, size alloc.Bytes, on alloc.Stream) bool {
	limit := a.cfg.MaxSplitSize
	if limit == math.MaxInt64 || a.cfg.ExpandableSegments {
		return false
	}
	want := max(size, limit)
	free := slices.DeleteFunc(a.free(small), func(p place) bool { return p.stream != on })
	for _, p := range free {
		if p.block().size >= want {
			a.giveBack(p)
			return true
		}
	}
	released := alloc.Bytes(0)
	for _, p := range slices.Backward(free) {
		if released >= want || p.block().size < limit {
			break
		}
		released += p.block().size
		a.giveBack(p)
	}
	return released >= want
}

// NaiveSegment is a segment as cache.Cache.Segments would show it.
type NaiveSegment struct {
	Ptr    alloc.Ptr
	Size   alloc.Bytes
	Small  bool
	Stream alloc.Stream
	Blocks []alloc.Block
}

// Segments returns the segments by address; of expandable ones, each stretch that is mapped.
func (a *Naive) Segments() (segments []NaiveSegment) {
	for _, s := range a.segments {
		run := false // in a stretch
		for _, b := range s.blocks {
			if b.unmapped {
				run = false
				continue
			}
			if !run {
				run = true
				segments = append(segments, NaiveSegment{Ptr: b.ptr, Small: s.small, Stream: s.stream})
			}
			state := alloc.Inactive
			if b.used {
				state = alloc.Allocated
			}
			if len(b.pending) > 0 {
				state = alloc.Pending
			}
			last := &segments[len(segments)-1]
			last.Size += b.size
			last.Blocks = append(last.Blocks, alloc.Block{Ptr: b.ptr, Size: b.size, Requested: b.requested, State: state})
		}
	}
	return segments
}
