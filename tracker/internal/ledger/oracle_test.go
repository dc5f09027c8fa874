package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// oracle is a ledger beside lists of all that it should know, which are added up anew at each check.
type oracle struct {
	*Ledger[string]
	t      *testing.T
	random *rand.Rand

	live     map[slab.ID]*buffer
	detached map[slab.ID]*buffer
	gone     []*buffer // withdrawn

	ever      map[placeAndMemory]mem.Tally // buffers ever allocated, wherever they are counted now
	total     mem.Tally                    // the same of the device's memory
	peak      map[bucketID]int64           // what was live at the peak
	top       mem.Tally
	high      alloc.Bytes
	marked    map[change]int64 // what was live at the last mark
	allocated map[any]uint16   // of each line and of each stack
	ptr       alloc.Ptr
}

// buffer is a record as the oracle knows it.
type buffer struct {
	place     Place
	line      LineID
	tensor    tables.Tensor
	ptr       alloc.Ptr
	allocated alloc.Bytes
	foreign   bool
	label     string
	withdrawn Withdrawn
}

// bucketID is what tells buckets apart, with the tensor as text.
type bucketID struct {
	Place
	tensor string
}

type change struct {
	line   LineID
	tensor string
}

type placeAndMemory struct {
	tables.Place
	memory alloc.Memory
}

func (b *buffer) bucket() bucketID    { return bucketID{b.place, textOf(&b.tensor)} }
func (b *buffer) sum() placeAndMemory { return placeAndMemory{b.place.Place, b.tensor.Memory} }
func (b *buffer) change() change      { return change{b.line, textOf(&b.tensor)} }
func textOf(x *tables.Tensor) string  { return fmt.Sprint(x.Kind, x.DType, x.Shape, x.Memory) }
func one(x *tables.Tensor) mem.Tally  { return mem.Tally{Count: 1, Bytes: x.Each} }
func (o *oracle) any(of map[slab.ID]*buffer) (slab.ID, *buffer) {
	if len(of) == 0 {
		return 0, nil
	}
	ids := slices.Sorted(maps.Keys(of))
	id := ids[o.random.IntN(len(ids))]
	return id, of[id]
}

func newOracle(t *testing.T, seed uint64) *oracle {
	l := NewLedger("owner")
	return &oracle{
		Ledger: &l, t: t, random: rand.New(rand.NewPCG(seed, 1)),
		live: make(map[slab.ID]*buffer), detached: make(map[slab.ID]*buffer),
		ever: make(map[placeAndMemory]mem.Tally), peak: make(map[bucketID]int64), marked: make(map[change]int64), allocated: make(map[any]uint16),
	}
}

// insert makes a buffer live. Most have a shape of their own, so that buckets come and go.
func (o *oracle) insert() {
	n := 1 + o.random.IntN(10)
	if o.random.IntN(2) == 0 {
		n = 1 + o.random.IntN(100_000)
	}
	b := &buffer{
		place:     Place{Place: tables.Place{Stack: tables.StackID(1 + o.random.IntN(4)), Section: uint32(o.random.IntN(2))}, Stream: uint8(o.random.IntN(2))},
		tensor:    tables.Tensor{Kind: []mem.Kind{"", "Input"}[o.random.IntN(2)], DType: alloc.Uint8, Shape: alloc.Shape{n}, Each: alloc.Bytes(n), Memory: alloc.DeviceMemory},
		allocated: alloc.Bytes(n + o.random.IntN(512)),
		foreign:   o.random.IntN(3) == 0,
	}
	b.line = LineID(b.place.Stack / 2)
	if o.random.IntN(4) == 0 {
		b.tensor.Memory = alloc.PinnedMemory
	}
	o.ptr += 4096
	b.ptr = o.ptr
	in := o.Buckets.GetOrMake(b.place, b.line, &b.tensor, o.Epoch)
	require.Equal(o.t, in, o.Buckets.Recent(b.place, &b.tensor), "what was made is found at once")
	require.Equal(o.t, in, o.Buckets.GetOrMake(b.place, b.line, &b.tensor, o.Epoch), "there is one bucket for each place and tensor")
	id, r := o.Records.Get()
	r.Ptr, r.Foreign = b.ptr, b.foreign
	bucket := o.Insert(r, in, b.allocated)
	require.Equal(o.t, Origin[string]{"owner", bucket.Group, b.place.Stack}, *bucket.Origin)
	require.Equal(o.t, [2]uint16{o.allocated[b.line], o.allocated[b.place.Stack]}, [2]uint16{r.InLine, r.InPath}, "they are numbered as they come")
	require.Equal(o.t, b.place.Stream, r.Stream)
	o.allocated[b.line]++
	o.allocated[b.place.Stack]++
	o.Addresses.Add(uint64(r.Ptr), id)
	o.live[id] = b
	o.ever[b.sum()] = o.ever[b.sum()].Add(one(&b.tensor))
	if !b.tensor.Memory.OnHost() {
		o.total = o.total.Add(one(&b.tensor))
	}
	o.raise()
}

// raise follows the peak, which the first moment of most bytes is.
func (o *oracle) raise() {
	now := o.current()
	o.high = max(o.high, now.Bytes)
	if now.Bytes > o.top.Bytes {
		o.setPeak()
	}
}

func (o *oracle) setPeak() {
	o.top, o.peak = o.current(), make(map[bucketID]int64)
	for _, b := range o.live {
		o.peak[b.bucket()]++
	}
}

func (o *oracle) current() (sum mem.Tally) {
	for _, b := range o.live {
		if !b.tensor.Memory.OnHost() {
			sum = sum.Add(one(&b.tensor))
		}
	}
	return sum
}

// step changes the ledger in one way.
func (o *oracle) step() {
	id, b := o.any(o.live)
	switch what := o.random.IntN(14); {
	case b == nil || what < 4:
		o.insert()
	case what < 6: // freed, or the owner says so
		r := o.Records.At(id)
		o.removeAddress(r)
		o.Remove(id, r)
		delete(o.live, id)
	case what == 6:
		o.Detach(id, o.Records.At(id))
		delete(o.live, id)
		o.detached[id] = b
	case what == 7:
		if id, b = o.any(o.detached); b != nil {
			o.Discard(id, o.Records.At(id))
			delete(o.detached, id)
		}
	case what == 8:
		if id, b = o.any(o.detached); b != nil {
			require.NoError(o.t, o.Reattach(id, o.Records.At(id)))
			delete(o.detached, id)
			o.live[id] = b
			o.raise()
		}
	case what == 9 && b.foreign:
		b.withdrawn = o.Withdraw(id, o.Records.At(id))
		require.Equal(o.t, b.ptr, b.withdrawn.Ptr())
		delete(o.live, id)
		o.gone = append(o.gone, b)
	case what == 10 && len(o.gone) > 0:
		i := o.random.IntN(len(o.gone))
		b = o.gone[i]
		o.gone = slices.Delete(o.gone, i, i+1)
		o.live[o.idOf(o.Reinsert(&b.withdrawn))] = b
		o.raise()
	case what == 11:
		o.move(id, b)
	case what == 12:
		b.label = []string{"", "a", "b"}[o.random.IntN(3)]
		o.Label(id, o.Records.At(id), b.label)
	case o.random.IntN(20) == 0:
		o.ResetPeak()
		o.setPeak()
		o.High, o.high = o.Current.Bytes, o.current().Bytes
	}
}

func (o *oracle) idOf(r *Record) slab.ID {
	for id := slab.ID(1); id < o.Records.Bound(); id++ {
		if o.Records.At(id) == r {
			return id
		}
	}
	return 0
}

// move gives a buffer another kind.
func (o *oracle) move(id slab.ID, b *buffer) {
	o.ever[b.sum()] = o.ever[b.sum()].Sub(one(&b.tensor))
	b.tensor.Kind = "Activation"
	o.ever[b.sum()] = o.ever[b.sum()].Add(one(&b.tensor))
	o.Move(id, o.Records.At(id), o.Buckets.GetOrMake(b.place, b.line, &b.tensor, o.Epoch))
}

// check compares all sums of the ledger with what the oracle adds up.
func (o *oracle) check() {
	t := o.t
	var device mem.Tally
	var allocated, registered, hostAllocated, hostRegistered alloc.Bytes
	var byMemory tables.ByMemory
	own := int64(0)
	counts := make(map[bucketID]int64)
	for id, b := range o.live {
		r := o.Records.At(id)
		assert.Equal(t, Live, r.State)
		assert.Equal(t, b.label, o.LabelOf(r))
		assert.Equal(t, id, o.Lookup(b.ptr))
		counts[b.bucket()]++
		sum := &byMemory[b.tensor.Memory]
		*sum = sum.Add(one(&b.tensor))
		all, others := &allocated, &registered
		if b.tensor.Memory.OnHost() {
			all, others = &hostAllocated, &hostRegistered
		} else {
			device = device.Add(one(&b.tensor))
		}
		*all += b.allocated
		if b.foreign {
			*others += b.allocated
		} else {
			own++
		}
	}
	for id, b := range o.detached {
		assert.NotEqual(t, Live, o.Records.At(id).State)
		assert.NotEqual(t, id, o.Lookup(b.ptr), "its address may be another's by now")
		if !b.foreign {
			own++
		}
	}
	require.Equal(t, device, o.Current)
	require.Equal(t, byMemory, o.ByMemory)
	require.Equal(t, []alloc.Bytes{allocated, registered, hostAllocated, hostRegistered}, []alloc.Bytes{o.Allocated, o.Registered, o.Host.Allocated, o.Host.Registered})
	require.Equal(t, own, o.Buffers)
	require.Equal(t, o.total, o.Total)
	require.Equal(t, o.top, o.Peak)
	require.Equal(t, o.high, o.High)
	require.Equal(t, len(o.live)+len(o.detached), o.Records.Len(), "records")
	labels := 0
	for _, of := range []map[slab.ID]*buffer{o.live, o.detached} {
		for _, b := range of {
			if b.label != "" {
				labels++
			}
		}
	}
	require.Equal(t, labels, o.Labels.Len(), "labels")
	o.checkBuckets(counts)
}

func (o *oracle) checkBuckets(counts map[bucketID]int64) {
	t := o.t
	groups := make(map[*Group]bool)
	ever := make(map[placeAndMemory]mem.Tally)
	peak := make(map[bucketID]int64)
	n := 0
	for id := slab.ID(1); id < o.Buckets.Bound(); id++ {
		b := o.Buckets.At(id)
		if b.Group == nil {
			continue
		}
		n++
		groups[b.Group] = true
		require.Equal(t, id, o.Buckets.find(b.Place, b.Group))
		require.Same(t, b.Group, o.Buckets.groups.find(o.Buckets.groups.hash(&b.Group.Tensor), &b.Group.Tensor))
		key := bucketID{b.Place, textOf(&b.Group.Tensor)}
		require.Equal(t, counts[key], b.Live, "%v", key)
		require.GreaterOrEqual(t, b.Total, b.Live)
		delete(counts, key)
		if at := b.AtPeak(o.Epoch); at != 0 {
			peak[key] = at
		}
		sum := placeAndMemory{b.Place.Place, b.Memory}
		ever[sum] = ever[sum].Add(b.Group.Tally(b.Total))
	}
	require.Empty(t, counts, "live buffers without a bucket")
	require.Equal(t, o.peak, peak, "what was live at the peak")
	for id := slab.ID(1); id < o.Buckets.Retired.Bound(); id++ {
		e := o.Buckets.Retired.At(id)
		require.GreaterOrEqual(t, e.Total.Count, int64(0))
		sum := placeAndMemory{e.Place, e.Memory}
		ever[sum] = ever[sum].Add(e.Total)
	}
	maps.DeleteFunc(ever, func(_ placeAndMemory, n mem.Tally) bool { return n.IsZero() })
	want := maps.Clone(o.ever)
	maps.DeleteFunc(want, func(_ placeAndMemory, n mem.Tally) bool { return n.IsZero() })
	require.Equal(t, want, ever, "what was ever allocated")
	require.Equal(t, n, o.Buckets.index.Len())
	require.Equal(t, len(groups), o.Buckets.groups.Len(), "a group goes with its last bucket")
	require.Equal(t, len(groups), o.Buckets.groups.table.Len())
}

// mark checks what changed since the last mark.
func (o *oracle) mark() {
	now := make(map[change]int64)
	for _, b := range o.live {
		now[b.change()]++
	}
	want := make(map[change]int64)
	for _, at := range []map[change]int64{now, o.marked} {
		for c := range at {
			if n := now[c] - o.marked[c]; n != 0 {
				want[c] = n
			}
		}
	}
	o.marked = now
	o.Buckets.Mark()
	got := make(map[change]int64)
	some := make([]Change, 1+o.random.IntN(10))
	for more := true; more; {
		var n int
		n, more = o.Buckets.TakeChanges(some)
		for _, c := range some[:n] {
			key := change{c.Line, textOf(&c.Group.Tensor)}
			if got[key] += c.Count; got[key] == 0 {
				delete(got, key)
			}
		}
	}
	require.Equal(o.t, want, got)
}

// TestTheLedgerIsExact runs random programs: after every step all sums are what the buffers add up to.
func TestTheLedgerIsExact(t *testing.T) {
	for seed := range uint64(6) {
		o := newOracle(t, seed)
		for range 1000 {
			o.step()
			if o.random.IntN(4) == 0 {
				o.check()
			}
			if o.random.IntN(50) == 0 {
				o.mark()
			}
		}
		o.check()
	}
}

// TestAViewIsOfOneInstant: whatever changes while a view is read, it shows the buffers, labels and counts of its
// instant. A chunk is kept when it first changes, so most views see a single change: each change must announce itself.
func TestAViewIsOfOneInstant(t *testing.T) {
	for seed := range uint64(10) {
		o := newOracle(t, seed)
		for range 600 { // then buckets are retired, too
			o.step()
		}
		for range 60 {
			o.checkViews(1)
		}
		for range 5 {
			o.checkViews(200)
		}
	}
}

// checkViews takes views, changes the ledger, and compares what they show with what was.
func (o *oracle) checkViews(steps int) {
	t := o.t
	want := make(map[alloc.Ptr]string)
	counts, totals := make(map[bucketID]int64), make(map[placeAndMemory]mem.Tally)
	for _, b := range o.live {
		want[b.ptr] = textOf(&b.tensor) + b.label
		counts[b.bucket()]++
	}
	for sum, n := range o.ever {
		if !n.IsZero() {
			totals[sum] = n
		}
	}
	buckets, records, labels, retired := o.Buckets.View(), o.Records.View(), o.Labels.View(), o.Buckets.Retired.View()
	for range steps {
		o.step()
	}
	var lock sync.Mutex
	names, tensors := make(map[slab.ID]string), make(map[slab.ID]string)
	labels.Read(&lock, func(first slab.ID, all []string) {
		for i, name := range all {
			names[first+slab.ID(i)] = name
		}
	})
	got, gotTotals := make(map[bucketID]int64), make(map[placeAndMemory]mem.Tally)
	count := func(sum placeAndMemory, n mem.Tally) {
		if n = gotTotals[sum].Add(n); n.IsZero() {
			delete(gotTotals, sum)
		} else {
			gotTotals[sum] = n
		}
	}
	buckets.Read(&lock, func(first slab.ID, all []Bucket[string]) {
		for i := range all {
			if b := &all[i]; b.Group != nil {
				tensors[first+slab.ID(i)] = textOf(&b.Group.Tensor)
				if b.Live != 0 {
					got[bucketID{b.Place, textOf(&b.Group.Tensor)}] = b.Live
				}
				count(placeAndMemory{b.Place.Place, b.Memory}, b.Group.Tally(b.Total))
			}
		}
	})
	retired.Read(&lock, func(_ slab.ID, all []tables.RetiredEntry) {
		for _, e := range all {
			count(placeAndMemory{e.Place, e.Memory}, e.Total)
		}
	})
	assert.Equal(t, counts, got)
	assert.Equal(t, totals, gotTotals)
	seen := make(map[alloc.Ptr]string)
	records.Read(&lock, func(_ slab.ID, all []Record) {
		for i := range all {
			if r := &all[i]; r.State == Live {
				seen[r.Ptr] = tensors[r.Bucket] + names[r.Label]
			}
		}
	})
	require.Equal(t, want, seen)
}
