package cache

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
)

// trim unmaps each chunk in which nothing is allocated. The chunks leave the free lists before the
// driver is asked.
func (x *expandable) trim() (given alloc.Bytes, err error) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var leaving []id
	for _, of := range [...]pool{large, small} {
		for p := range c.streams.all() {
			for last := (block{size: x.chunkSize(of)}); x.detachSome(&p.free[of].(*growingTree).tree, &last, &leaving); {
				c.mu.Unlock() // others have waited
				c.mu.Lock()
			}
		}
	}
	errs := []error{x.settle()}
	for _, i := range leaving {
		b := c.blocks.At(i)
		p, size := b.ptr, b.size
		c.mu.Unlock()
		err := x.dev.Unmap(p, size)
		c.mu.Lock()
		if err != nil {
			errs = append(errs, fmt.Errorf("give memory at %v of %v back to %s: %w", p, size, c.device, err))
			x.reattach(i)
			continue
		}
		given += size
		c.happened(cachelock.SegmentUnmap, p, size, c.streams.at(b.stream).stream)
		if err := x.unmapped(i); err != nil {
			errs = append(errs, err)
		}
	}
	return given, errors.Join(errs...)
}

// detachSome detaches the chunks of segmentsAtOnce blocks behind last in the order of the tree, makes the
// last of them last, and reports whether there may be more.
func (x *expandable) detachSome(t *tree, last *block, leaving *[]id) bool {
	for range segmentsAtOnce {
		i := t.behind(last)
		if i == none {
			return false
		}
		*last = *t.blocks.At(i) // the rest of the block is less than a chunk, and lies before
		if j := x.detach(i); j != none {
			*leaving = append(*leaving, j)
		}
	}
	return true
}

// detach unmaps the whole chunks in a free block; the parts before and behind them stay in the free
// list. It returns the block that is now unmapped, which is not in holes yet; or none.
func (x *expandable) detach(i id) id {
	c := x.c
	b := c.blocks.At(i)
	part := x.chunks(b)
	if part.size == 0 {
		return none
	}
	c.blocks.Touch(i)
	free := c.freeList(b)
	c.unlist(free, i, b)
	pieces := int64(0)
	before := i
	if part.ptr > b.ptr {
		pieces++
		i, b = c.cut(i, b, alloc.Bytes(part.ptr-b.ptr))
		c.list(free, before, c.blocks.At(before))
	}
	if b.size > part.size {
		pieces++
		j, rest := c.cut(i, b, part.size)
		c.list(free, j, rest)
	}
	b.state = unmapped
	change(&c.stats.Inactive, -part.size, pieces-1)
	change(&c.stats.Reserved, -part.size, x.mappedNeighbours(b)-1)
	return i
}

// reattach undoes detach.
func (x *expandable) reattach(i id) {
	c := x.c
	b := c.blocks.At(i)
	c.blocks.Touch(i)
	size := b.size
	b.state = alloc.Inactive
	restore(&c.stats.Reserved, size, 1-x.mappedNeighbours(b))
	restore(&c.stats.Inactive, size, 1-c.join(i, b))
}

// unmapped enters an unmapped block into holes, merged with its unmapped neighbours. If the whole
// segment has no memory left, it gives back the segment's addresses instead.
func (x *expandable) unmapped(i id) error {
	c := x.c
	b := c.blocks.At(i)
	if j := b.next; j != none && c.blocks.At(j).state == unmapped {
		if behind := c.blocks.At(j); x.removeHole(behind) {
			c.blocks.Touch(i)
			c.absorb(i, b, j, behind)
		}
	}
	if j := b.prev; j != none && c.blocks.At(j).state == unmapped {
		if before := c.blocks.At(j); x.removeHole(before) {
			c.blocks.Touch(j)
			c.absorb(j, before, i, b)
			i, b = j, before
		}
	}
	if !b.whole() {
		x.addHole(i, b)
		return nil
	}
	return x.remove(i)
}

// close gives back the addresses of the segments without memory.
func (x *expandable) close() error {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	errs := []error{x.settle()}
	for p := range c.streams.all() {
		for pool, holes := range p.holes {
			p.holes[pool] = nil
			for _, i := range holes {
				if c.blocks.At(i).whole() {
					errs = append(errs, x.remove(i))
				} else {
					p.holes[pool] = append(p.holes[pool], i)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// remove takes a segment that consists of one unmapped block out of the cache. The caller holds mu,
// which remove releases while the driver is asked.
func (x *expandable) remove(i id) error {
	c := x.c
	p := c.blocks.At(i).ptr
	c.segments.remove(p)
	c.streams.leave(c.blocks.At(i).stream)
	c.blocks.Put(i)
	c.mu.Unlock()
	defer c.mu.Lock()
	return x.release(p)
}

// release gives addresses back. The caller does not hold mu.
func (x *expandable) release(p alloc.Ptr) error {
	c := x.c
	if err := x.dev.Release(p); err != nil {
		c.mu.Lock()
		x.left = append(x.left, p)
		c.mu.Unlock()
		return fmt.Errorf("give addresses at %v back to %s: %w", p, c.device, err)
	}
	return nil
}

// settle retries calls that the device refused before. The caller holds mu, which settle releases
// while the driver is asked.
func (x *expandable) settle() error {
	c := x.c
	left := x.left
	x.left = nil
	c.mu.Unlock()
	defer c.mu.Lock()
	var errs []error
	for _, p := range left {
		errs = append(errs, x.release(p))
	}
	return errors.Join(errs...)
}
