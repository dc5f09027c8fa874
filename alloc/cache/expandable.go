package cache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

func newExpandable(c *Cache, dev alloc.VirtualDevice) *expandable {
	return &expandable{cache: c, dev: dev}
}

// maxReservation is the size of a segment of a device that knows no size of its own, or
// a very large one.
const maxReservation = 64 * alloc.TiB

// alloc takes a block of that size, which no mapped block has, by mapping what is missing
// at the lowest addresses with enough room. The caller holds the driver's lock.
func (x *expandable) alloc(n, size alloc.Bytes, on alloc.Stream, enter cachelock.Enter) (alloc.Ptr, alloc.Bytes, error) {
	c, pool := x.cache, poolOf(size)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := x.room(on, pool, size); ; {
		var err error
		if i == none {
			if err = x.reserve(on, pool, size); err == nil {
				i = x.room(on, pool, size)
			}
		} else if b := c.blocks.At(i); b.state == alloc.Inactive && b.size >= size {
			c.unpool(c.poolsAt(b.stream), i, pool)
			b, remainders := c.take(i, n, size, noOwner)
			usageAdd(&c.stats.Inactive, -b.size, remainders-1)
			return c.handOut(b, enter)
		} else if i, err = x.grow(i, size); err == nil && !x.leads(i, size) {
			// While the driver was asked, others may have taken a part of it, or freed enough.
			if b := c.recheck(n, on); b != nil {
				return c.handOut(b, enter)
			}
			i = x.room(on, pool, size)
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

// leads reports whether a free block has the size, or addresses behind it that can be mapped.
func (x *expandable) leads(i id, size alloc.Bytes) bool {
	b := x.cache.blocks.At(i)
	return b.size >= size || x.growth(i) > b.size
}

// room returns the first of some blocks, free or unmapped and one behind the other, that have
// the size together: those at the lowest addresses of a stream's pool.
func (x *expandable) room(on alloc.Stream, pool alloc.Pool, size alloc.Bytes) id {
	blocks, p := &x.cache.blocks, x.cache.poolsOf(on)
	if p == nil {
		return none
	}
	for _, first := range p.holes[pool] {
		if before := blocks.At(first).prev; before != none && blocks.At(before).state == alloc.Inactive {
			first = before
		}
		sum := alloc.Bytes(0)
		for i := first; i != none && (blocks.At(i).state == alloc.Inactive || blocks.At(i).state == unmapped); i = blocks.At(i).next {
			if sum += blocks.At(i).size; sum >= size {
				return first
			}
		}
	}
	return none
}

// grow maps the first unmapped block of those that room returned, as much of it as is missing,
// and returns the free block that it is a part of now. The caller holds mu, which grow releases while the
// driver is asked.
func (x *expandable) grow(i id, size alloc.Bytes) (id, error) {
	c := x.cache
	if b := c.blocks.At(i); b.state == alloc.Inactive {
		i, size = b.next, size-b.size
	}
	b := c.blocks.At(i)
	p, size := b.ptr, min(roundUpTo(size, chunkSize(b.pool)), b.size)
	c.mu.Unlock()
	err := x.dev.Map(p, size)
	c.mu.Lock()
	if err != nil {
		return none, err
	}
	return x.mapped(i, size), nil
}

// mapped makes the front of an unmapped block free, and returns the free block
// that it is a part of then.
func (x *expandable) mapped(i id, size alloc.Bytes) id {
	c := x.cache
	b := c.blocks.At(i)
	c.blocks.Touch(i)
	c.happened(cachelock.SegmentMap, b.ptr, size, c.poolsAt(b.stream).stream)
	holes := &c.poolsAt(b.stream).holes[b.pool]
	at, _ := x.hole(*holes, b.ptr)
	if rest := b.size - size; rest > 0 {
		(*holes)[at] = x.cut(i, b, size)
	} else {
		*holes = slices.Delete(*holes, at, at+1)
	}
	b.state = alloc.Inactive
	usageAdd(&c.stats.Reserved, size, 1-x.mappedNeighbours(b))
	free := i
	if before := b.prev; before != none && c.blocks.At(before).state == alloc.Inactive {
		free = before
	}
	usageAdd(&c.stats.Inactive, size, 1-c.join(i, b))
	return free
}

// cut makes what lies behind the first bytes of a block a block of its own, of the same
// state, and in no pool.
func (x *expandable) cut(i id, b *block, size alloc.Bytes) id {
	c := x.cache
	j, rest := c.blocks.Get()
	*rest = block{ptr: b.ptr + alloc.Ptr(size), size: b.size - size, prev: i, next: b.next, pool: b.pool, state: b.state, stream: b.stream}
	if b.next != none {
		c.blocks.Touch(b.next)
		c.blocks.At(b.next).prev = j
	}
	b.next, b.size = j, size
	return j
}

// mappedNeighbours returns how many of a block's neighbours are mapped.
func (x *expandable) mappedNeighbours(b *block) (n int64) {
	for _, i := range [...]id{b.prev, b.next} {
		if i != none && x.cache.blocks.At(i).state != unmapped {
			n++
		}
	}
	return n
}

// hole returns where the unmapped block at an address is in its pool's list, or would be.
func (x *expandable) hole(holes []id, p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(holes, p, func(i id, p alloc.Ptr) int {
		return cmp.Compare(x.cache.blocks.At(i).ptr, p)
	})
}

// reserve adds a segment with room for more than the device's memory, none of it mapped. The caller holds mu,
// which reserve releases while the driver is asked.
func (x *expandable) reserve(on alloc.Stream, pool alloc.Pool, size alloc.Bytes) error {
	c := x.cache
	c.mu.Unlock()
	s, err := x.newSegment(pool, size)
	c.mu.Lock()
	if err != nil {
		return err
	}
	s.stream = on
	if err := c.check(s); err != nil {
		return err
	}
	i, b := c.blocks.Get()
	*b = block{ptr: s.ptr, size: s.size, pool: pool, state: unmapped, stream: c.joinStream(on)}
	s.first = i
	at, _ := c.search(s.ptr)
	c.segments = slices.Insert(c.segments, at, s)
	x.addHole(i, b)
	return nil
}

// addHole enters an unmapped block into its pool's list.
func (x *expandable) addHole(i id, b *block) {
	holes := &x.cache.poolsAt(b.stream).holes[b.pool]
	at, _ := x.hole(*holes, b.ptr)
	*holes = slices.Insert(*holes, at, i)
}

// removeHole takes the unmapped block at an address out of its pool's list, and reports
// whether it was there.
func (x *expandable) removeHole(b *block) bool {
	holes := &x.cache.poolsAt(b.stream).holes[b.pool]
	at, found := x.hole(*holes, b.ptr)
	if found {
		*holes = slices.Delete(*holes, at, at+1)
	}
	return found
}

func (x *expandable) newSegment(pool alloc.Pool, size alloc.Bytes) (segment, error) {
	info, err := x.dev.MemInfo()
	room := maxReservation
	if err == nil && info.Total > 0 && info.Total < maxReservation/2 {
		room = info.Total + info.Total/8 // so that holes can stay empty, as in PyTorch
	}
	chunk := chunkSize(pool)
	room = roundUpTo(room, chunk)
	if size > room {
		return segment{}, fmt.Errorf("%w: %v of addresses for %v", alloc.ErrOutOfMemory, room, size)
	}
	p, err := x.dev.Reserve(room, chunk)
	return segment{ptr: p, size: room, pool: pool}, err
}
