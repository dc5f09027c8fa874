package sim

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// pool is a stream-ordered pool.
type pool struct {
	dev *device

	mu        sync.Mutex // taken before the device's
	threshold alloc.Bytes
	blocks    []*poolBlock
	live      map[alloc.Ptr]*poolBlock
	levels    poolStats
}

// poolBlock is pages that a pool holds.
type poolBlock struct {
	ptr    alloc.Ptr
	pages  alloc.Bytes // in bytes
	size   alloc.Bytes // as requested
	live   bool
	stream alloc.Stream   // it is freed in the order of this one
	others []alloc.Stream // that use it too
	done   time.Duration  // for a free block: the time when its stream reaches the free
}

// poolStats is what a pool holds.
type poolStats struct {
	Used, UsedHigh         alloc.Bytes // in callers' hands; the highest level
	Reserved, ReservedHigh alloc.Bytes // taken from the device; the highest level
}

var (
	_ alloc.StreamAllocator      = (*pool)(nil)
	_ capability.ReservingDevice = (*pool)(nil)
)

// Memory returns alloc.PoolMemory.
func (p *pool) Memory() alloc.Memory { return alloc.PoolMemory }

// Name returns the device's name.
func (p *pool) Name() string { return p.dev.Name() }

// Ordinal returns the device's index.
func (p *pool) Ordinal() int { return p.dev.Ordinal() }

// Unwrap returns the device; alloc.As finds its optional methods.
func (p *pool) Unwrap() alloc.Device { return p.dev }

// MemInfo is the device's. Free does not include what the pool keeps. The errors are the same.
func (p *pool) MemInfo() (alloc.MemInfo, error) { return p.dev.MemInfo() }

// Alloc is AllocOn for the default stream. The errors are those of AllocOn.
func (p *pool) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	at, _, err := p.AllocOn(n, 0)
	return at, err
}

// AllocOn allocates n bytes for work on a stream, with Device.Alloc's errors.
func (p *pool) AllocOn(n alloc.Bytes, s alloc.Stream) (alloc.Ptr, alloc.Bytes, error) {
	if n < 0 {
		return 0, 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.dev.call("PoolAlloc"); errors.Is(err, alloc.ErrOutOfMemory) {
		return 0, 0, p.outOfMemory(n, err)
	} else if err != nil {
		return 0, 0, err
	}
	b := p.reuse(n, s)
	if b == nil {
		if b = p.grow(n); b == nil {
			return 0, 0, p.outOfMemory(n, nil)
		}
	}
	if p.dev.checkReuse {
		p.dev.handedOutBehind(b.ptr, b.pages, s, b.done)
	}
	*b = poolBlock{ptr: b.ptr, pages: b.pages, size: n, live: true, stream: s}
	p.live[b.ptr] = b
	p.levels.Used += n
	p.levels.UsedHigh = max(p.levels.UsedHigh, p.levels.Used)
	return b.ptr, n, nil
}

// reuse returns the smallest inactive block of n bytes or more that the stream may use.
func (p *pool) reuse(n alloc.Bytes, s alloc.Stream) (best *poolBlock) {
	now := p.dev.Advance(0)
	for _, b := range p.blocks {
		if !b.live && b.pages >= n && (b.stream == s || b.done <= now) && (best == nil || b.pages < best.pages) {
			best = b
		}
	}
	return best
}

// grow takes pages from the device. It returns nil if the device does not have enough, even after
// the pool gave back what is free.
func (p *pool) grow(n alloc.Bytes) *poolBlock {
	size := max(wholePages(n), pageSize)
	if n > maxMemory {
		return nil
	}
	at, ok := p.dev.takePages(size)
	if !ok {
		p.trim(0)
		if at, ok = p.dev.takePages(size); !ok {
			return nil
		}
	}
	b := &poolBlock{ptr: at, pages: size}
	p.blocks = append(p.blocks, b)
	p.levels.Reserved += size
	p.levels.ReservedHigh = max(p.levels.ReservedHigh, p.levels.Reserved)
	return b
}

// RecordStream says that work on another stream uses the memory at an address too: after Free, the
// memory's own stream waits for that work. The error is alloc.ErrUnknownPtr if the address is not
// that of a live allocation.
func (p *pool) RecordStream(at alloc.Ptr, s alloc.Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.live[at]
	if b == nil {
		return fmt.Errorf("record stream %#x for %v of a pool on %v: %w", uint64(s), at, p.dev, alloc.ErrUnknownPtr)
	}
	if s != b.stream && !slices.Contains(b.others, s) {
		b.others = append(b.others, s)
	}
	return nil
}

// Free gives an address back in the order of its stream. The errors are alloc.ErrUnknownPtr for
// one that is not live, alloc.ErrClosed, and those of faults.
func (p *pool) Free(at alloc.Ptr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.dev.call("PoolFree"); err != nil {
		return err
	}
	b := p.live[at]
	if b == nil {
		return fmt.Errorf("free %v of a pool on %v: %w", at, p.dev, alloc.ErrUnknownPtr)
	}
	b.live, b.done = false, p.dev.streams.join(b.stream, b.others)
	delete(p.live, at)
	p.levels.Used -= b.size
	return nil
}

// Stats returns the pool's levels. The errors are alloc.ErrClosed and those of faults.
func (p *pool) Stats() (poolStats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.dev.call("Pool"); err != nil {
		return poolStats{}, err
	}
	return p.levels, nil
}

// Reserved returns what the pool holds of the device. The error is alloc.ErrClosed, or that of
// an injected fault.
func (p *pool) Reserved() (alloc.Bytes, error) {
	s, err := p.Stats()
	return s.Reserved, err
}

// Trim gives free pages back until the pool holds no more than keep, as far as the work that used
// them is done. The errors are alloc.ErrClosed and those of faults.
func (p *pool) Trim(keep alloc.Bytes) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.dev.call("Pool"); err != nil {
		return err
	}
	p.trim(keep)
	return nil
}

func (p *pool) trim(keep alloc.Bytes) {
	now := p.dev.Advance(0)
	p.blocks = slices.DeleteFunc(p.blocks, func(b *poolBlock) bool {
		if b.live || b.done > now || p.levels.Reserved <= keep {
			return false
		}
		p.dev.givePages(b.ptr)
		p.levels.Reserved -= b.pages
		return true
	})
}

// synchronized gives free memory beyond the threshold back to the device.
func (p *pool) synchronized() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trim(p.threshold)
}

func (p *pool) outOfMemory(n alloc.Bytes, cause error) error {
	defer p.dev.begin()()
	err := p.dev.outOfMemory(n, cause)
	if oom, ok := errors.AsType[*alloc.OutOfMemoryError](err); ok {
		oom.Reserved, oom.Allocated = p.levels.Reserved, p.levels.Used
	}
	return err
}
