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

// addOne makes a record of that size live, in a cell of its own stack.
func addOne(l *Ledger[string], stack tables.StackID, n alloc.Bytes, memory alloc.Memory) (slab.ID, *Record) {
	x := tables.Tensor{Kind: "Input", DType: alloc.Uint8, Shape: alloc.Shape{int(n)}, Each: n, Memory: memory}
	cell := l.Cells.Make(Place{Place: tables.Place{Stack: stack}}, 1, &x, l.Epoch)
	id, r := l.Records.Get()
	r.Ptr = alloc.Ptr(4096 * alloc.Ptr(stack))
	l.Add(r, cell, n)
	l.Addresses.Add(uint64(r.Ptr), id)
	return id, r
}

// TestAFailedFreeLetsItsCellGo: a record that is leaving pins its cell, so that a failed free finds it again.
// Once the record is back and freed, nothing needs the cell, and a table of cells stays bounded.
func TestAFailedFreeLetsItsCellGo(t *testing.T) {
	l := NewLedger("owner")
	id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
	cell := r.Cell
	l.TakeOut(id, r)
	l.ResetPeak()
	assert.True(t, l.Cells.At(cell).needed(l.Epoch), "the free may fail")
	require.NoError(t, l.PutBack(id, r))
	l.TakeOut(id, r)
	l.Settle(id, r)
	l.ResetPeak()
	assert.False(t, l.Cells.At(cell).needed(l.Epoch), "nothing is live or leaving")
}

// TestAdmitsCountsWhatIsOnTheHost: the sums of each side stay within 64 bits, also where the device holds nothing.
func TestAdmitsCountsWhatIsOnTheHost(t *testing.T) {
	const half = math.MaxInt64/2 + 1
	for _, memory := range []alloc.Memory{alloc.DeviceMemory, alloc.PinnedMemory} {
		l := NewLedger("owner")
		assert.True(t, l.Admits(half))
		addOne(&l, 1, half, memory)
		assert.False(t, l.Admits(half), "%v", memory)
		assert.True(t, l.Admits(half/2), "%v", memory)
	}
}

// TestARecordIsSmall: what is added to it is added for each live buffer.
func TestARecordIsSmall(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(Record{}), uintptr(48))
}
