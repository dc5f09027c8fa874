package cache

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// expandable makes segments grow in place. A segment is a range of addresses larger than the
// device's memory, and only the parts in use are mapped to memory. In the cache's list each is one
// segment, whose blocks tile all of it. A block without memory is unmapped: it is in no free list,
// but in its stream's holes. To all other code, each stretch of mapped blocks is a segment.
type expandable struct {
	c      *Cache
	dev    capability.VirtualDevice
	cfg    Config       // used instead if the device turns out to be unable to map memory
	memory alloc.Memory // the type of memory that it then allocates

	unreleased []alloc.Ptr // addresses of removed segments that the device did not take back
}

// useExpandable makes an empty cache grow by mapping memory.
func useExpandable(c *Cache, dev capability.VirtualDevice, cfg Config) {
	x := &expandable{c: c, dev: dev, cfg: cfg, memory: capability.MemoryOf(dev)}
	c.memory, c.growth = alloc.VirtualMemory, x
	c.fitting = newFitting(cfg)
	c.fitting.noSplitFrom = math.MaxInt64 // blocks join again across all of a segment
	c.fitting.minRemainder[large] = blockUnit
	c.policy = limitPolicy{dev, cfg.MemoryFraction}
	c.streams = newStreams(x.freeLists)
}

func (x *expandable) freeLists() [2]freeList {
	list := func() freeList { return &growingTree{tree{blocks: &x.c.blocks}, x} }
	return [...]freeList{small: list(), large: list()}
}

// maxReservation is the size of a segment of a device that knows no size of its own, or
// a very large one.
const maxReservation = 64 * alloc.TiB

// grow serves a request that no mapped block is large enough for. It maps what is missing, at the
// lowest addresses where the request fits.
func (x *expandable) grow(r request) (alloc.Ptr, alloc.Bytes, error) {
	p, allocated, err := x.extend(r)
	if err == nil {
		return p, allocated, nil
	}
	if x.fallBack(err) {
		return x.c.growth.grow(r)
	}
	return 0, 0, fmt.Errorf("alloc %v on %s: %w", r.n, x.c.device, err)
}

// fallBack makes the cache grow by plain segments if the error is that the driver maps no memory, and reports
// whether it did.
func (x *expandable) fallBack(err error) bool {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if !errors.Is(err, errors.ErrUnsupported) || len(x.c.segments) > 0 {
		return false
	}
	useSegments(x.c, x.cfg, x.memory)
	return true
}

// unlocked calls the device. The caller holds mu, which unlocked releases meanwhile, and holds again if the device
// panics.
func (x *expandable) unlocked(call func() error) error {
	x.c.mu.Unlock()
	defer x.c.mu.Lock()
	return call()
}

// extend does the work of grow, and returns the driver's own errors.
func (x *expandable) extend(r request) (alloc.Ptr, alloc.Bytes, error) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	i := x.findRange(r)
	for {
		if i == none {
			if err := x.reserve(r); err != nil {
				return 0, 0, err
			}
			i = x.findRange(r)
			continue
		}
		if b := c.blocks.At(i); b.state == alloc.Inactive && b.size >= r.size {
			c.takeListed(c.freeList(b), i, b, r.n, r.size)
			return c.assign(i, b, r)
		}
		var err error
		if i, err = x.mapMissing(i, r.size); err != nil {
			return 0, 0, err
		}
		if b := c.blocks.At(i); b.size >= r.size || reach(&c.blocks, i) > b.size {
			continue // it is enough, or more can be mapped behind it
		}
		// While the driver was asked, others may have taken some of this memory, or freed enough.
		if p, size, ok, err := c.reuseFor(r); ok {
			return p, size, err
		}
		i = x.findRange(r)
	}
}

// findRange returns the first of some blocks, free or unmapped and one behind the other, that have
// the request's size together: those at the lowest addresses of its stream's pool.
func (x *expandable) findRange(r request) id {
	blocks, p := &x.c.blocks, x.c.streams.of(r.stream)
	if p == nil {
		return none
	}
	for _, first := range p.holes[r.pool()] {
		if before := blocks.At(first).prev; before != none && blocks.At(before).state == alloc.Inactive {
			first = before
		}
		sum := alloc.Bytes(0)
		for i := first; i != none && (blocks.At(i).state == alloc.Inactive || blocks.At(i).state == unmapped); i = blocks.At(i).next {
			if sum += blocks.At(i).size; sum >= r.size {
				return first
			}
		}
	}
	return none
}

// mapMissing maps memory at block i, the first unmapped one that findRange found, but no more than is
// missing. It returns the free block that now includes it. The caller holds mu, which mapMissing
// releases while the driver is asked.
func (x *expandable) mapMissing(i id, size alloc.Bytes) (id, error) {
	c := x.c
	if b := c.blocks.At(i); b.state == alloc.Inactive {
		i, size = b.next, size-b.size
	}
	b := c.blocks.At(i)
	p, size := b.ptr, min(roundUpTo(size, x.chunkSize(b.pool)), b.size)
	if err := x.unlocked(func() error { return x.dev.Map(p, size) }); err != nil {
		return none, err
	}
	return x.mapped(i, size), nil
}

// mapped makes the front of an unmapped block free, and returns the free block
// that it is a part of then.
func (x *expandable) mapped(i id, size alloc.Bytes) id {
	c := x.c
	b := c.blocks.At(i)
	c.blocks.Touch(i)
	c.emit(cachelock.SegmentMap, b.ptr, size, c.streams.at(b.stream).stream)
	holes := &c.streams.at(b.stream).holes[b.pool]
	at, _ := x.hole(*holes, b.ptr)
	if rest := b.size - size; rest > 0 {
		(*holes)[at], _ = c.split(i, b, size)
	} else {
		*holes = slices.Delete(*holes, at, at+1)
	}
	b.state = alloc.Inactive
	change(&c.stats.Reserved, size, 1-x.mappedNeighbours(b))
	free := i
	if before := b.prev; before != none && c.blocks.At(before).state == alloc.Inactive {
		free = before
	}
	change(&c.stats.Inactive, size, 1-c.coalesce(i, b))
	return free
}

// mappedNeighbours returns how many of a block's neighbours are mapped.
func (x *expandable) mappedNeighbours(b *block) (n int64) {
	for _, i := range [...]id{b.prev, b.next} {
		if i != none && x.c.blocks.At(i).state != unmapped {
			n++
		}
	}
	return n
}

// hole returns where the unmapped block at an address is in its pool's list, or would be.
func (x *expandable) hole(holes []id, p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(holes, p, func(i id, p alloc.Ptr) int {
		return cmp.Compare(x.c.blocks.At(i).ptr, p)
	})
}

// reserve adds a segment whose address range is larger than the device's memory, with nothing
// mapped. The caller holds mu, which reserve releases while the driver is asked.
func (x *expandable) reserve(r request) error {
	c := x.c
	var s segment
	err := x.unlocked(func() (err error) {
		s, err = x.newSegment(r.pool(), r.size)
		return err
	})
	if err != nil {
		return err
	}
	s.stream = r.stream
	if err := c.segments.check(s); err != nil {
		return err
	}
	x.addHole(c.addSegment(s, unmapped))
	return nil
}

// addHole enters an unmapped block into its pool's list.
func (x *expandable) addHole(i id, b *block) {
	holes := &x.c.streams.at(b.stream).holes[b.pool]
	at, _ := x.hole(*holes, b.ptr)
	*holes = slices.Insert(*holes, at, i)
}

// removeHole takes the unmapped block at an address out of its pool's list, and reports
// whether it was there.
func (x *expandable) removeHole(b *block) bool {
	holes := &x.c.streams.at(b.stream).holes[b.pool]
	at, found := x.hole(*holes, b.ptr)
	if found {
		*holes = slices.Delete(*holes, at, at+1)
	}
	return found
}

func (x *expandable) newSegment(of pool, size alloc.Bytes) (segment, error) {
	info, err := x.dev.MemInfo()
	reserved := maxReservation
	if err == nil && info.Total > 0 && info.Total < maxReservation/2 {
		reserved = x.cfg.addresses(info.Total)
	}
	chunk := x.chunkSize(of)
	reserved = roundUpTo(reserved, chunk)
	if size > reserved {
		return segment{}, fmt.Errorf("%w: %v of addresses for %v", alloc.ErrOutOfMemory, reserved, size)
	}
	p, err := x.dev.Reserve(reserved, chunk)
	return segment{ptr: p, size: reserved, pool: of}, err
}

// addresses returns how many addresses a segment reserves on a device with this much memory.
func (c Config) addresses(total alloc.Bytes) alloc.Bytes {
	most := total + total/8 // more than the memory, so that holes can stay empty, as in PyTorch
	if c.reserveFraction > 0 {
		return min(alloc.Bytes(min(c.reserveFraction, 2)*float64(total)), most)
	}
	if c.reserve > 0 {
		return min(c.reserve, most)
	}
	return most
}

// chunkSize returns the unit in which memory for a pool is mapped.
func (x *expandable) chunkSize(of pool) alloc.Bytes {
	if of == small {
		return smallSegment
	}
	return x.c.fitting.segment
}

// addresses is a range of addresses.
type addresses struct {
	ptr  alloc.Ptr
	size alloc.Bytes
}

// chunks returns the addresses of the chunks that lie in a block entirely.
func (x *expandable) chunks(b *block) addresses {
	unit := alloc.Ptr(x.chunkSize(b.pool))
	s, _ := x.c.segments.at(b.ptr)
	first := s.ptr + (b.ptr-s.ptr+unit-1)/unit*unit
	end := s.ptr + (b.end()-s.ptr)/unit*unit
	if first >= end {
		return addresses{}
	}
	return addresses{first, alloc.Bytes(end - first)}
}

// reach returns how large a free block can become.
func reach(blocks *slab.Slab[block], i id) alloc.Bytes {
	b := blocks.At(i)
	if b.next == none || blocks.At(b.next).state != unmapped {
		return b.size
	}
	return b.size + blocks.At(b.next).size
}

// growingTree holds the inactive blocks of a pool whose segments grow.
type growingTree struct {
	tree
	x *expandable
}

func (t *growingTree) add(i id, b *block) {
	t.tree.add(i, b)
	t.x.c.stats.Reclaimable += t.reclaimable(b)
}

func (t *growingTree) remove(i id, b *block) {
	t.tree.remove(i, b)
	t.x.c.stats.Reclaimable -= t.reclaimable(b)
}

// reclaimable returns how many bytes of a block can go back to the driver: those of the chunks that lie in it
// entirely.
func (t *growingTree) reclaimable(b *block) alloc.Bytes {
	if b.fillsSegment() {
		return 0 // the cache counts it
	}
	return t.x.chunks(b).size
}

// fit returns the block that PyTorch takes instead of the best fit. It starts at the best fit and
// moves to the next block in the tree as long as that one can grow to a smaller size.
func (t *growingTree) fit(size alloc.Bytes) id {
	i := t.tree.fit(size)
	for i != none {
		next := t.next(i)
		if next == none || reach(t.blocks, next) >= reach(t.blocks, i) {
			break
		}
		i = next
	}
	return i
}

// roundUpTo rounds n up to a multiple of unit. unit need not be a power of two.
func roundUpTo(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) / unit * unit }

// trim unmaps each chunk in which nothing is allocated. The chunks leave the free lists before the
// driver is asked. Those that it refuses return to the lists, and so do those that are not unmapped yet when the device
// panics.
func (x *expandable) trim() (freed alloc.Bytes, err error) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var leaving []id
	defer func() {
		for _, i := range leaving {
			x.reattach(i)
		}
	}()
	for _, of := range [...]pool{large, small} {
		for p := range c.streams.all() {
			for last := (block{size: x.chunkSize(of)}); x.detachSome(&p.free[of].(*growingTree).tree, &last, &leaving); {
				c.mu.Unlock() // let waiting goroutines run
				c.mu.Lock()
			}
		}
	}
	errs := []error{x.retryReleases()}
	for len(leaving) > 0 {
		i := leaving[0]
		b := c.blocks.At(i)
		p, size := b.ptr, b.size
		err := x.unlocked(func() error { return x.dev.Unmap(p, size) })
		leaving = leaving[1:]
		if err != nil {
			errs = append(errs, fmt.Errorf("give memory at %v of %v back to %s: %w", p, size, c.device, err))
			x.reattach(i)
			continue
		}
		freed += size
		c.emit(cachelock.SegmentUnmap, p, size, c.streams.at(b.stream).stream)
		if err := x.unmapped(i); err != nil {
			errs = append(errs, err)
		}
	}
	return freed, errors.Join(errs...)
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
		i, b = c.split(i, b, alloc.Bytes(part.ptr-b.ptr))
		c.list(free, before, c.blocks.At(before))
	}
	if b.size > part.size {
		pieces++
		j, rest := c.split(i, b, part.size)
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
	restore(&c.stats.Inactive, size, 1-c.coalesce(i, b))
}

// unmapped enters an unmapped block into holes, merged with its unmapped neighbours. If the whole
// segment has no memory left, it gives back the segment's addresses instead.
func (x *expandable) unmapped(i id) error {
	c := x.c
	b := c.blocks.At(i)
	if j := b.next; j != none && c.blocks.At(j).state == unmapped {
		if behind := c.blocks.At(j); x.removeHole(behind) {
			c.blocks.Touch(i)
			c.merge(i, b, j, behind)
		}
	}
	if j := b.prev; j != none && c.blocks.At(j).state == unmapped {
		if before := c.blocks.At(j); x.removeHole(before) {
			c.blocks.Touch(j)
			c.merge(j, before, i, b)
			i, b = j, before
		}
	}
	if !b.fillsSegment() {
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
	errs := []error{x.retryReleases()}
	for p := range c.streams.all() {
		for pool, holes := range p.holes {
			p.holes[pool] = nil
			for _, i := range holes {
				if c.blocks.At(i).fillsSegment() {
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
	c.streams.removeSegment(c.blocks.At(i).stream)
	c.blocks.Put(i)
	c.mu.Unlock()
	defer c.mu.Lock()
	return x.release(p)
}

// release gives addresses back. Those that the device refuses, and those at which it panics, are tried again later. The
// caller does not hold mu.
func (x *expandable) release(p alloc.Ptr) error {
	c := x.c
	released := false
	defer func() {
		if !released {
			c.mu.Lock()
			x.unreleased = append(x.unreleased, p)
			c.mu.Unlock()
		}
	}()
	if err := x.dev.Release(p); err != nil {
		return fmt.Errorf("give addresses at %v back to %s: %w", p, c.device, err)
	}
	released = true
	return nil
}

// retryReleases retries calls that the device refused before. The caller holds mu, which retryReleases releases
// while the driver is asked.
func (x *expandable) retryReleases() error {
	c := x.c
	left := x.unreleased
	x.unreleased = nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		x.unreleased = append(x.unreleased, left...) // none, unless the device panics
	}()
	var errs []error
	for len(left) > 0 {
		p := left[0]
		left = left[1:]
		errs = append(errs, x.release(p))
	}
	return errors.Join(errs...)
}
