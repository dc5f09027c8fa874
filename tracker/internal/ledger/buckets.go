package ledger

import (
	"math/bits"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// Origin is the part of a bucket that Buffers refer to. Unlike the bucket it lives as long as a Buffer
// refers to it. All buffers of a bucket share it, so it costs a buffer one pointer to find its owner, its group and its
// call stack.
type Origin[Owner any] struct {
	Owner Owner // of the ledger
	Group *Group
	Stack tables.StackID
}

// Bucket is the part of a group that one call stack allocated in one section. All its buffers have
// one size, so everything known by line of code is a count in a bucket.
type Bucket[Owner any] struct {
	Origin *Origin[Owner]
	Group  *Group      // nil for a bucket that is not in use; the origin's
	Each   alloc.Bytes // the group's
	Place
	Line   LineID       // the call site of the stack
	Memory alloc.Memory // the group's

	lineUnit, pathUnit *survival.Unit // ages of the freed buffers of its line and its call stack

	Live   int64 // buffers now
	marked int64 // buffers at the last mark
	Total  int64 // buffers ever

	// peak is the count at the ledger's peak if epoch is the ledger's; otherwise
	// nothing has changed here since that peak, and it is live.
	peak  int64
	epoch uint64

	interval     uint64  // interval between two marks in which the bucket last changed; 0 if it is on no list
	newer, older slab.ID // neighbours in that interval's list

	InHistory TensorIndex // of the group

	detached int32 // its records whose memory is being freed: see Ledger.Detach
}

// buckets finds the bucket of a place and a group, and knows which buckets changed since the last mark.
type buckets[Owner any] struct {
	slab.Slab[Bucket[Owner]]
	index  addrtable.Table // by Place.hash
	groups groups
	recent recentBuckets
	Lifetimes
	changed

	owner Owner   // see Origin
	limit int     // a sweep begins when there are more
	swept slab.ID // the next bucket of the sweep; 0 if none is under way

	// Retired holds the buffers ever allocated by the buckets that were dropped.
	Retired      slab.Slab[tables.RetiredEntry]
	retiredIndex map[retiredKey]slab.ID
}

type retiredKey struct {
	tables.Place
	memory alloc.Memory
}

// Place is the call stack and section of an allocation, and the number of the stream that it is
// for.
type Place struct {
	tables.Place
	Stream uint8
}

// hash returns the hash of a place and a group.
func (p Place) hash(g *Group) uint64 {
	return g.hash ^ (uint64(p.Stack)<<32|uint64(p.Section)<<8|uint64(p.Stream))*multiplier
}

// multiplier is 2^64 over the golden ratio: a product's high bits depend on all bits of the other factor.
const multiplier = 0x9e3779b97f4a7c15

const (
	minBuckets = 256
	sweepBatch = 16 // buckets that the sweep checks for each new one
)

func newBuckets[Owner any](owner Owner) buckets[Owner] {
	return buckets[Owner]{
		owner:        owner,
		index:        addrtable.New(),
		groups:       newGroups(),
		retiredIndex: make(map[retiredKey]slab.ID),
		limit:        minBuckets,
		recent:       newRecentBuckets(fewestRecent),
		changed:      changed{interval: 1},
	}
}

// Recent returns the bucket of a place and a tensor if it was found lately, or 0. The tensor need not
// be measured or valid, because only a valid tensor has a bucket.
func (bs *buckets[Owner]) Recent(p Place, x *tables.Tensor) slab.ID {
	id := *bs.recent.at(p, x.Shape)
	if id == 0 {
		return 0
	}
	if b := bs.At(id); b.Group == nil || b.Place != p || !x.EqualUnmeasured(&b.Group.Tensor) {
		return 0
	}
	return id
}

// GetOrMake returns the bucket of a place and a measured tensor, making it if it is new. The line is the stack's.
func (bs *buckets[Owner]) GetOrMake(p Place, line LineID, x *tables.Tensor, peakEpoch uint64) slab.ID {
	hash := bs.groups.hash(x)
	g := bs.groups.find(hash, x)
	if g != nil {
		if id := bs.find(p, g); id != 0 {
			*bs.recent.at(p, x.Shape) = id
			return id
		}
	}
	bs.sweep(peakEpoch)
	var origin *Origin[Owner]
	if g == nil {
		g, origin = newGroup[Owner](&bs.groups, hash, x)
	} else {
		origin = new(Origin[Owner])
	}
	*origin = Origin[Owner]{bs.owner, g, p.Stack}
	if g.buckets == 0 { // it is new, or the sweep has dropped it
		bs.groups.add(g)
	}
	g.buckets++
	id, b := bs.Get()
	bs.recent.fit(bs.Len())
	b.Origin, b.Group, b.Each, b.Memory, b.Place, b.Line = origin, g, x.Each, x.Memory, p, line
	b.lineUnit, b.pathUnit = bs.Lifetimes.line(line), bs.path(p.Stack)
	bs.index.Add(p.hash(g), id)
	*bs.recent.at(p, x.Shape) = id
	return id
}

// find returns the bucket of a place and a group, or 0.
func (bs *buckets[Owner]) find(p Place, g *Group) slab.ID {
	search := bs.index.Look(p.hash(g))
	for {
		id := search.Next()
		if id == 0 {
			return 0
		}
		if b := bs.At(id); b.Group == g && b.Place == p {
			return id
		}
	}
}

// getOrMakeAgain returns the bucket of a buffer that was counted before. If its bucket was dropped since, the buffer
// moves from the retired total back to the bucket's.
func (bs *buckets[Owner]) getOrMakeAgain(p Place, line LineID, x *tables.Tensor, peakEpoch uint64) slab.ID {
	id := bs.GetOrMake(p, line, x, peakEpoch)
	if b := bs.At(id); b.Total == b.Live {
		bs.Touch(id)
		b.Total++
		at := bs.retiredAt(retiredKey{p.Place, x.Memory})
		bs.Retired.Touch(at)
		r := bs.Retired.At(at)
		r.Total = r.Total.Sub(x.Tally(1))
	}
	return id
}

// sweep drops the buckets that no mark, no peak and no live buffer needs, a few at each call. It ends when as many
// may be added as remain. So the table of a program whose shapes never repeat is bounded, and a program whose shapes
// repeat pays nothing.
func (bs *buckets[Owner]) sweep(peakEpoch uint64) {
	if bs.swept == 0 {
		if bs.Len() < bs.limit {
			return
		}
		bs.swept = 1
	}
	for end := min(bs.swept+sweepBatch, bs.Bound()); bs.swept < end; bs.swept++ {
		if b := bs.At(bs.swept); b.Group != nil && !b.needed(peakEpoch) {
			bs.retire(bs.swept, b)
		}
	}
	if bs.swept >= bs.Bound() {
		bs.swept, bs.limit = 0, max(minBuckets, 2*bs.Len())
	}
}

// CountFree counts the age at which a buffer of a bucket was freed.
func (bs *buckets[Owner]) CountFree(b *Bucket[Owner], age, now time.Duration, event uint64) {
	bs.units.Freed(b.lineUnit, b.pathUnit, age, now, event)
}

// retire drops a bucket, and adds its total to that of its place.
func (bs *buckets[Owner]) retire(id slab.ID, b *Bucket[Owner]) {
	at := bs.retiredAt(retiredKey{b.Place.Place, b.Memory})
	bs.Retired.Touch(at)
	r := bs.Retired.At(at)
	r.Total = r.Total.Add(b.Group.Tally(b.Total))
	if b.interval != 0 {
		bs.unlink(b)
	}
	search := bs.index.Look(b.Place.hash(b.Group))
	for search.Next() != id {
	}
	bs.index.Remove(&search)
	if b.Group.buckets--; b.Group.buckets == 0 {
		bs.groups.remove(b.Group)
	}
	bs.Put(id)
}

// retiredAt returns the entry of a place and a type of memory, making it if it is new.
func (bs *buckets[Owner]) retiredAt(k retiredKey) slab.ID {
	id := bs.retiredIndex[k]
	if id == 0 {
		var r *tables.RetiredEntry
		id, r = bs.Retired.Get()
		r.Place, r.Memory = k.Place, k.memory
		bs.retiredIndex[k] = id
	}
	return id
}

// needed reports whether the bucket still counts anything but its total.
func (b *Bucket[Owner]) needed(peakEpoch uint64) bool {
	return b.Live != 0 || b.marked != 0 || b.detached != 0 || b.AtPeak(peakEpoch) != 0
}

// AtPeak returns the number of buffers at the ledger's peak.
func (b *Bucket[Owner]) AtPeak(peakEpoch uint64) int64 {
	if b.epoch == peakEpoch {
		return b.peak
	}
	return b.Live
}

// changed lists the buckets whose count changed between two marks, so that the cost of a mark follows what changed.
// A mark is of one instant, but does not hold the lock for the whole list: Mark begins a new list, and TakeChanges
// takes some buckets of the previous one at a time. If a bucket of the previous list changes again before that, its
// change up to the mark is saved first.
type changed struct {
	interval uint64   // number of marks, plus one
	current  slab.ID  // head of the list of this interval
	previous slab.ID  // head of what is left of the list of the interval before
	saved    []Change // of buckets that left the previous list because they changed again
}

// Change is how the count of one bucket changed between two marks.
type Change struct {
	Group *Group
	Line  LineID
	Count int64 // may be zero
}

// unlink takes a bucket off its list. No view shows the lists, so it calls no Touch.
func (bs *buckets[Owner]) unlink(b *Bucket[Owner]) {
	head := &bs.current
	if b.interval != bs.interval {
		head = &bs.previous
	}
	if b.older != 0 {
		bs.At(b.older).newer = b.newer
	}
	if b.newer != 0 {
		bs.At(b.newer).older = b.older
	} else {
		*head = b.older
	}
	b.interval, b.newer, b.older = 0, 0, 0
}

// markChanged puts a bucket on the current list. It comes before the count changes.
func (bs *buckets[Owner]) markChanged(id slab.ID, b *Bucket[Owner]) {
	if b.interval != 0 { // it is on the previous list
		bs.unlink(b)
		bs.saved = append(bs.saved, b.sinceMark())
	}
	b.interval, b.newer, b.older = bs.interval, 0, bs.current
	if bs.current != 0 {
		bs.At(bs.current).newer = id
	}
	bs.current = id
}

// Mark makes the present the last mark. TakeChanges must have returned all changes up to the one before.
func (bs *buckets[Owner]) Mark() {
	bs.previous, bs.current = bs.current, 0
	bs.interval++
}

// TakeChanges fills into with changes between the last two marks that it has not returned yet. It returns how
// many, and whether there are more.
func (bs *buckets[Owner]) TakeChanges(into []Change) (n int, more bool) {
	rest := max(0, len(bs.saved)-len(into))
	n = copy(into, bs.saved[rest:])
	clear(bs.saved[rest:])
	bs.saved = bs.saved[:rest]
	for ; n < len(into) && bs.previous != 0; n++ {
		b := bs.At(bs.previous)
		bs.unlink(b)
		into[n] = b.sinceMark()
	}
	return n, bs.previous != 0 || rest > 0
}

// sinceMark returns how the count changed since the last mark, and makes the present the last mark.
func (b *Bucket[Owner]) sinceMark() Change {
	change := Change{b.Group, b.Line, b.Live - b.marked}
	b.marked = b.Live
	return change
}

// recentBuckets is a cache of bucket IDs, in slots chosen by call stack, section and shape. A bucket replaces another
// one with the same slot, so a caller checks that it has found the right one.
type recentBuckets struct {
	slots []slab.ID
	shift int // 64 less the bits of an index
}

const (
	fewestRecent   = 1 << 10
	mostRecent     = 1 << 16
	slotsPerBucket = 8 // slots, so that few buckets share one
)

func newRecentBuckets(slots int) recentBuckets {
	return recentBuckets{make([]slab.ID, slots), 64 - bits.TrailingZeros(uint(slots))}
}

// at returns the slot of the tensors of a shape that are allocated at a place.
func (r *recentBuckets) at(p Place, shape alloc.Shape) *slab.ID {
	h := uint64(p.Stack)<<32 | uint64(p.Section)
	for _, n := range shape {
		h = bits.RotateLeft64(h, 9) ^ uint64(n)
	}
	return &r.slots[h*multiplier>>(r.shift&63)]
}

// fit grows the cache for a number of buckets. The larger cache is empty.
func (r *recentBuckets) fit(buckets int) {
	if n := len(r.slots); buckets*slotsPerBucket > n && n < mostRecent {
		*r = newRecentBuckets(2 * n)
	}
}
