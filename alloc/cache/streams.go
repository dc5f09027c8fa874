package cache

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// streamID is a small number of a stream, as a block record has no space for a handle.
type streamID uint16

// maxStreams is how many streams can have segments at one time.
const maxStreams = 1<<16 - 1

// pool says which requests a segment serves. Small and large ones never share one.
type pool uint8

const (
	small pool = iota
	large
)

// String returns the pool's name in an alloc.Segment.
func (p pool) String() string { return [...]string{"small", "large"}[p] }

// pools holds the inactive blocks of one stream.
type pools struct {
	stream   alloc.Stream
	segments int // that the stream has
	free     [2]freeList
	holes    [2][]id // unmapped blocks of each pool, by address
}

// largest returns the size of the largest block, 0 if there is none.
func (p *pools) largest() alloc.Bytes {
	return max(p.free[small].largest(), p.free[large].largest())
}

// streams has the pools of the streams that have segments, and of the default stream. A number is
// used again when its stream's last segment has gone.
type streams struct {
	freeLists func() [2]freeList // makes the free lists of a stream
	own       pools              // pools of the default stream
	others    []*pools           // number n is at n-1
	number    map[alloc.Stream]streamID
	unused    []streamID
	ofThread  alloc.Stream // the handle that means another stream on each thread; 0 is none
}

func newStreams(freeLists func() [2]freeList) streams {
	return streams{freeLists: freeLists, own: pools{free: freeLists()}}
}

// of returns the pools of a stream, or nil.
func (o *streams) of(s alloc.Stream) *pools {
	if s == 0 {
		return &o.own
	}
	if id, ok := o.number[s]; ok {
		return o.others[id-1]
	}
	return nil
}

// at returns the pools of the stream with a number.
func (o *streams) at(id streamID) *pools {
	if id == 0 {
		return &o.own
	}
	return o.others[id-1]
}

// check returns an error for a handle that does not name one stream: the cache could not tell what
// is queued on it.
func (o *streams) check(s alloc.Stream) error {
	if s != 0 && s == o.ofThread {
		return capability.NoThreadStream(s)
	}
	return nil
}

// full reports whether there is no number for a stream.
func (o *streams) full(s alloc.Stream) bool {
	return o.of(s) == nil && len(o.unused) == 0 && len(o.others) == maxStreams
}

// addSegment counts a segment of a stream, and returns the stream's number.
func (o *streams) addSegment(s alloc.Stream) (id streamID) {
	if s != 0 {
		id = o.numberOf(s)
	}
	o.at(id).segments++
	return id
}

func (o *streams) numberOf(s alloc.Stream) streamID {
	id, ok := o.number[s]
	if ok {
		return id
	}
	if last := len(o.unused) - 1; last >= 0 {
		id, o.unused = o.unused[last], o.unused[:last]
	} else {
		o.others = append(o.others, &pools{free: o.freeLists()})
		id = streamID(len(o.others))
	}
	if o.number == nil {
		o.number = make(map[alloc.Stream]streamID)
	}
	o.number[s] = id
	o.at(id).stream = s
	return id
}

// removeSegment undoes addSegment.
func (o *streams) removeSegment(id streamID) {
	p := o.at(id)
	p.segments--
	if id != 0 && p.segments == 0 {
		delete(o.number, p.stream)
		o.unused = append(o.unused, id)
	}
}

// all iterates over the pools of every stream that has segments, ordered by the stream's handle as
// in PyTorch.
func (o *streams) all() iter.Seq[*pools] {
	all := []*pools{&o.own}
	for _, id := range o.number {
		all = append(all, o.at(id))
	}
	slices.SortFunc(all, func(p, q *pools) int { return cmp.Compare(p.stream, q.stream) })
	return slices.Values(all)
}

// largest returns the size of the largest block, 0 if there is none.
func (o *streams) largest() alloc.Bytes {
	size := o.own.largest()
	for _, p := range o.others {
		size = max(size, p.largest())
	}
	return size
}

// handles returns the streams by their number.
func (o *streams) handles() []alloc.Stream {
	handles := make([]alloc.Stream, 1+len(o.others))
	for s, id := range o.number {
		handles[id] = s
	}
	return handles
}
