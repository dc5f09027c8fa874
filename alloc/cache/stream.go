package cache

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// poolsOf returns the pools of a stream, nil if it has none.
func (c *Cache) poolsOf(s alloc.Stream) *pools {
	if s == 0 {
		return &c.own
	}
	return c.others.find(s)
}

// poolsAt returns the pools of the stream with a number.
func (c *Cache) poolsAt(id streamID) *pools {
	if id == 0 {
		return &c.own
	}
	return c.others.pools[id-1]
}

// checkStream returns the error of a further segment for a stream.
func (c *Cache) checkStream(s alloc.Stream) error {
	if c.poolsOf(s) == nil && len(c.others.unused) == 0 && len(c.others.pools) == maxStreams {
		return fmt.Errorf("memory for stream %#x on %s: %d streams have memory already: call Trim to give back free memory", uint64(s), c.device, maxStreams)
	}
	return nil
}

// joinStream enters a segment with its stream, and returns the stream's number.
func (c *Cache) joinStream(s alloc.Stream) (id streamID) {
	if s != 0 {
		id = c.numberOf(s)
	}
	c.poolsAt(id).segments++
	return id
}

func (c *Cache) numberOf(s alloc.Stream) streamID {
	o := &c.others
	id, ok := o.number[s]
	if ok {
		return id
	}
	if last := len(o.unused) - 1; last >= 0 {
		id, o.unused = o.unused[last], o.unused[:last]
	} else {
		o.pools = append(o.pools, new(pools))
		id = streamID(len(o.pools))
	}
	if o.number == nil {
		o.number = make(map[alloc.Stream]streamID)
	}
	o.number[s] = id
	c.initPools(o.pools[id-1], s)
	return id
}

// leaveStream undoes joinStream.
func (c *Cache) leaveStream(id streamID) {
	p := c.poolsAt(id)
	p.segments--
	if id != 0 && p.segments == 0 {
		delete(c.others.number, p.stream)
		c.others.unused = append(c.others.unused, id)
	}
}

// allPools iterates over the pools of every stream that has segments, by its handle, as PyTorch
// orders them.
func (c *Cache) allPools() iter.Seq[*pools] {
	all := []*pools{&c.own}
	for _, id := range c.others.number {
		all = append(all, c.poolsAt(id))
	}
	slices.SortFunc(all, func(p, q *pools) int { return cmp.Compare(p.stream, q.stream) })
	return slices.Values(all)
}

// handles returns the streams by their number.
func (c *Cache) handles() []alloc.Stream {
	handles := make([]alloc.Stream, 1+len(c.others.pools))
	for s, id := range c.others.number {
		handles[id] = s
	}
	return handles
}

func (c *Cache) initPools(p *pools, s alloc.Stream) {
	p.stream = s
	p.small.blocks, p.large.blocks, p.smallTree.blocks = &c.blocks, &c.blocks, &c.blocks
}
