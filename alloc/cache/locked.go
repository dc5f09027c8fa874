package cache

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// locked is a Cache whose lock the caller holds.
type locked struct{ c *Cache }

func (l locked) Mutex() *spinlock.Mutex { return &l.c.mu }

func (l locked) PollAndLock() {
	l.c.mu.Lock()
	if l.c.pending.count != 0 {
		l.c.pollUnlocked()
	}
}

func (l locked) Alloc(n alloc.Bytes, s alloc.Stream, owner cachelock.Owner) (number cachelock.Block, p alloc.Ptr, allocated alloc.Bytes, ok bool) {
	if n < 0 {
		return 0, 0, 0, false
	}
	size := l.c.rounding.blockSize(n)
	l.c.tick(size, 1)
	i, b := l.c.reuse(n, size, s)
	if b == nil {
		l.c.tick(size, ^uint32(0)) // AllocSlow counts it
		return 0, 0, 0, false
	}
	b.left = id(owner)
	return cachelock.Block(i), b.ptr, b.size, true
}

func (l locked) AllocSlow(n alloc.Bytes, s alloc.Stream, register cachelock.Register) error {
	if n < 0 {
		return fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	polled := l.c.poll()
	size := l.c.rounding.blockSize(n)
	l.c.mu.Lock()
	l.c.tick(size, 1)
	l.c.mu.Unlock()
	_, _, err := l.c.allocSlow(request{n, size, s, register, polled})
	return err
}

func (l locked) Free(number cachelock.Block, p alloc.Ptr, owner cachelock.Owner) (needsPoll bool, err error) {
	i := id(number)
	b := l.c.blocks.At(i)
	if l.c.closed || b.ptr != p || b.state != alloc.Allocated || b.left != id(owner) {
		return false, l.c.freeError(p)
	}
	l.c.release(i, b)
	return l.c.needsPoll(), nil
}

func (l locked) RecordStream(number cachelock.Block, s alloc.Stream) error {
	return l.c.recordStreamOf(id(number), s)
}

func (l locked) Poll() { l.c.poll() }

func (l locked) Owner(p alloc.Ptr) cachelock.Owner {
	i := l.c.allocatedAt(p)
	if i == none {
		return noOwner
	}
	return cachelock.Owner(l.c.blocks.At(i).left)
}

func (l locked) Memory() alloc.Memory { return l.c.memory }

func (l locked) Stats() alloc.Stats { return l.c.statsLocked() }

func (l locked) Cut() cachelock.Cut { return &cut{l.c, l.c.blocks.View(), l.c.streams.handles()} }

func (l locked) Notify(segment func(cachelock.Event), reusable func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream)) {
	l.c.notify, l.c.pending.reusable = segment, reusable
}
