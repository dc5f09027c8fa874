package ledger

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
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

// TestARecordIsSmall: what is added to it is added for each live buffer.
func TestARecordIsSmall(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(Record{}), uintptr(48))
}
