package ledger

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// addOne makes a record of that size live, in a bucket of its own stack.
func addOne(l *Ledger[string], stack tables.StackID, n alloc.Bytes, memory alloc.Memory) (slab.ID, *Record) {
	x := tables.Tensor{Kind: "Input", DType: alloc.Uint8, Shape: alloc.Shape{int(n)}, Each: n, Memory: memory}
	bucket := l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: stack}}, 1, &x, l.Epoch)
	id, r := l.Records.Get()
	r.Ptr = alloc.Ptr(4096 * alloc.Ptr(stack))
	l.Insert(r, bucket, n)
	l.Addresses.Add(uint64(r.Ptr), id)
	return id, r
}

// TestAFailedFreeLetsItsBucketGo: a record that is detached detached its bucket, so that a failed free finds it again.
// Once the record is back and freed, nothing needs the bucket, and a table of buckets stays bounded.
func TestAFailedFreeLetsItsBucketGo(t *testing.T) {
	l := NewLedger("owner")
	id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
	bucket := r.Bucket
	l.Detach(id, r)
	l.ResetPeak()
	assert.True(t, l.Buckets.At(bucket).needed(l.Epoch), "the free may fail")
	require.NoError(t, l.Reattach(id, r))
	l.Detach(id, r)
	l.Discard(id, r)
	l.ResetPeak()
	assert.False(t, l.Buckets.At(bucket).needed(l.Epoch), "nothing is live or detached")
}

// TestAdmitsCountsWhatIsOnTheHost: the sums of each side stay within 64 bits, also where the device holds nothing.
func TestAdmitsCountsWhatIsOnTheHost(t *testing.T) {
	const half = math.MaxInt64/2 + 1
	for _, memory := range []alloc.Memory{alloc.DeviceMemory, alloc.PinnedMemory} {
		l := NewLedger("owner")
		assert.True(t, l.Fits(half))
		addOne(&l, 1, half, memory)
		assert.False(t, l.Fits(half), "%v", memory)
		assert.True(t, l.Fits(half/2), "%v", memory)
	}
}

// TestFitsToTheByte: the cache may round a request up by 4 MiB, and even then the sum is within 64 bits.
func TestFitsToTheByte(t *testing.T) {
	l := NewLedger("owner")
	const most = math.MaxInt64 - 4*alloc.MiB
	assert.True(t, l.Fits(most))
	assert.False(t, l.Fits(most+1))
	addOne(&l, 1, 1000, alloc.DeviceMemory)
	assert.True(t, l.Fits(most-1000))
	assert.False(t, l.Fits(most-999))
}

// TestTotalStopsAtItsBound: a program may allocate more than 64 bits count in its life.
func TestTotalStopsAtItsBound(t *testing.T) {
	l := NewLedger("owner")
	const half = math.MaxInt64/2 + 1
	for i := range 3 {
		id, r := addOne(&l, tables.StackID(i+1), half, alloc.DeviceMemory)
		l.removeAddress(r)
		l.Remove(id, r)
	}
	assert.Equal(t, mem.Tally{Count: 3, Bytes: math.MaxInt64}, l.Total)
	l = NewLedger("owner")
	addOne(&l, 9, 0, alloc.DeviceMemory)
	assert.Equal(t, mem.Tally{Count: 1}, l.Total, "a buffer may have no bytes")
	l = NewLedger("owner")
	for i := range 2 { // up to the bound itself
		addOne(&l, tables.StackID(i+1), math.MaxInt64/2, alloc.DeviceMemory)
	}
	assert.Equal(t, mem.Tally{Count: 2, Bytes: math.MaxInt64 - 1}, l.Total)
	addOne(&l, 3, 0, alloc.DeviceMemory)
	assert.Equal(t, mem.Tally{Count: 3, Bytes: math.MaxInt64 - 1}, l.Total)
}

// TestTheFirstPeakCounts: of equal levels, the peak is the first.
func TestTheFirstPeakCounts(t *testing.T) {
	l := NewLedger("owner")
	id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
	l.Remove(id, r)
	_, r = addOne(&l, 2, 64, alloc.DeviceMemory)
	assert.Zero(t, l.Buckets.At(r.Bucket).AtPeak(l.Epoch))
}

// TestAReusedAddressIsAnError: while a free is under way the driver may hand the address to another buffer. If the
// free then fails, the address has an owner, and the first buffer is gone.
func TestAReusedAddressIsAnError(t *testing.T) {
	l := NewLedger("owner")
	id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
	l.Label(id, r, "first")
	l.Detach(id, r)
	assert.Zero(t, l.Lookup(4096))
	second, other := addOne(&l, 1, 32, alloc.DeviceMemory)
	err := l.Reattach(id, r)
	require.ErrorIs(t, err, ErrDuplicatePtr)
	assert.ErrorContains(t, err, "0x1000: address is already live in the ledger, as Input (32,)")
	assert.Equal(t, second, l.Lookup(other.Ptr))
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 32}, l.Current)
	assert.Equal(t, 1, l.Records.Len())
	assert.Zero(t, l.Labels.Len())
	assert.EqualValues(t, 1, l.Buffers)
}

// TestRecordsOutliveClose: after Close all sums are 0, and each buffer can still be freed once, or fail to be.
func TestRecordsOutliveClose(t *testing.T) {
	l := NewLedger("owner")
	id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
	l.Label(id, r, "x")
	second, other := addOne(&l, 2, 64, alloc.PinnedMemory)
	l.Close()
	assert.Equal(t, []any{true, mem.Tally{}, mem.Tally{}, mem.Tally{}, alloc.Bytes(0), alloc.Bytes(0), tables.ByMemory{}, hostBytes{}, 0, slab.ID(0)},
		[]any{l.Closed, l.Current, l.Total, l.Peak, l.Allocated, l.High, l.ByMemory, l.Host, l.Buckets.Len(), l.Lookup(r.Ptr)})
	l.Detach(id, r)
	assert.NotEqual(t, Live, r.State)
	require.NoError(t, l.Reattach(id, r))
	assert.Equal(t, Live, r.State)
	l.Detach(id, r)
	l.Discard(id, r)
	l.Remove(second, other)
	assert.Equal(t, []int{0, 0, 0}, []int{l.Records.Len(), l.Labels.Len(), int(l.Buffers)})
	assert.Equal(t, mem.Tally{}, l.Current)
}

// TestStreamsThatAreTooManyAreOne: a record has one byte for its stream.
func TestStreamsThatAreTooManyAreOne(t *testing.T) {
	s := newStreams()
	assert.Zero(t, s.At(0))
	for round := range 2 {
		for i := 1; i < tables.MaxStreams-1; i++ {
			assert.EqualValues(t, i, s.At(alloc.Stream(1000+i)), "round %d", round)
		}
	}
	for i := range 3 {
		assert.EqualValues(t, tables.MaxStreams-1, s.At(alloc.Stream(5000+i)))
	}
	require.Len(t, s.Handles, tables.MaxStreams)
	assert.Equal(t, []alloc.Stream{0, 1001, tables.OtherStreams}, []alloc.Stream{s.Handles[0], s.Handles[1], s.Handles[tables.MaxStreams-1]})
	assert.EqualValues(t, 7, s.At(1007))
}

// TestARecordIsSmall: what is added to it is added for each live buffer.
func TestARecordIsSmall(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(Record{}), uintptr(48))
}

// TestSlotsReturn: after a million changes, all records and labels are unused again, and there were never more than were live
// at once.
func TestSlotsReturn(t *testing.T) {
	const most = 40
	random := rand.New(rand.NewPCG(1, 2))
	l := NewLedger("owner")
	x := tables.Tensor{Kind: "Input", DType: alloc.Uint8, Shape: alloc.Shape{64}, Each: 64}
	y := x
	y.Kind = "Activation"
	kinds := [2]slab.ID{}
	for i, x := range []*tables.Tensor{&x, &y} {
		kinds[i] = l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: 1}}, 1, x, l.Epoch)
	}
	live := make([]slab.ID, 0, most)
	free := func(i int) {
		id := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		switch r := l.Records.At(id); random.IntN(3) {
		case 0:
			l.removeAddress(r)
			l.Remove(id, r)
		case 1:
			l.Detach(id, r)
			l.Discard(id, r)
		default: // an address that other memory has by the time that the free fails
			l.Detach(id, r)
			other, s := l.Records.Get()
			s.Ptr = r.Ptr
			l.Insert(s, kinds[0], 64)
			l.Addresses.Add(uint64(s.Ptr), other)
			require.Error(t, l.Reattach(id, r))
			live = append(live, other)
		}
	}
	for i := range 1_000_000 {
		if len(live) < most/2 || len(live) < most && random.IntN(2) == 0 {
			id, r := l.Records.Get()
			r.Ptr, r.Foreign = alloc.Ptr(i+1), random.IntN(2) == 0
			l.Insert(r, kinds[random.IntN(2)], 64)
			l.Addresses.Add(uint64(r.Ptr), id)
			live = append(live, id)
			continue
		}
		at := random.IntN(len(live))
		id := live[at]
		switch r := l.Records.At(id); random.IntN(5) {
		case 0:
			free(at)
		case 1:
			l.Move(id, r, kinds[random.IntN(2)])
		case 2:
			if r.Foreign {
				w := l.Withdraw(id, r)
				l.Reinsert(&w)
				live[at] = l.Lookup(w.Ptr())
			}
		default:
			l.Label(id, r, []string{"", "a", "b"}[random.IntN(3)])
		}
	}
	for len(live) > 0 {
		free(0)
	}
	assert.Zero(t, l.Records.Len())
	assert.Zero(t, l.Labels.Len())
	assert.LessOrEqual(t, int(l.Records.Bound()), most+2, "one more while a free fails, and number 0")
	assert.LessOrEqual(t, int(l.Labels.Bound()), most+2)
	assert.Zero(t, l.Current)
	assert.Zero(t, l.Buffers)
	for _, id := range kinds {
		b := l.Buckets.At(id)
		assert.Zero(t, b.Live)
		assert.Zero(t, b.detached)
	}
}
