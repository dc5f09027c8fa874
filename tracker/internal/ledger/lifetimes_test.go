package ledger

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// TestLifetimesAreByLineAndByStack: a free counts for the line and the call stack of its bucket, and for no other, in
// whatever page of stacks it is.
func TestLifetimesAreByLineAndByStack(t *testing.T) {
	l := NewLedger("owner")
	x := tables.Tensor{DType: alloc.Uint8, Shape: alloc.Shape{1}, Each: 1}
	stacks := []tables.StackID{1, 2, unitsInPage - 1, unitsInPage, unitsInPage + 1, 5 * unitsInPage, tables.StackID(callstack.Overflow)}
	for i, stack := range stacks {
		line := LineID(2 * (i / 2)) // two stacks to a line, and lines between that free nothing
		b := l.Buckets.At(l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: stack}}, line, &x, l.Epoch))
		for range i + 1 {
			l.Buckets.CountFree(b, 2*time.Second, time.Hour, uint64(100+i))
		}
	}
	var lock sync.Mutex
	lines := l.Buckets.CopyLines(&lock, func(LineID) bool { return true })
	freed := make(map[LineID]int64)
	for line, u := range lines {
		freed[line] = u.Freed()
	}
	assert.Equal(t, map[LineID]int64{0: 1 + 2, 2: 3 + 4, 4: 5 + 6, 6: 7}, freed)
	for i, stack := range stacks {
		u := l.Buckets.CopyPath(&lock, stack)
		require.NotNil(t, u, "%d", stack)
		assert.EqualValues(t, i+1, u.Freed(), "%d", stack)
		assert.EqualValues(t, 100+i, u.Last)
	}
	for _, none := range []tables.StackID{3, unitsInPage + 2, 3 * unitsInPage, 6 * unitsInPage, 100 * unitsInPage} {
		assert.Nil(t, l.Buckets.CopyPath(&lock, none), "%d", none)
	}
}

// TestCopiesOfLinesWithoutTriangles: what only a line with enough live buffers needs is copied for it alone.
func TestCopiesOfLinesWithoutTriangles(t *testing.T) {
	l := NewLedger("owner")
	x := tables.Tensor{DType: alloc.Uint8, Shape: alloc.Shape{1}, Each: 1}
	for line := range LineID(3) {
		b := l.Buckets.At(l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: tables.StackID(line + 1)}}, line, &x, l.Epoch))
		if line != 1 {
			l.Buckets.CountFree(b, 30*time.Minute, time.Hour, 1)
		}
	}
	lines := l.Buckets.CopyLines(new(sync.Mutex), func(line LineID) bool { return line == 2 })
	require.Len(t, lines, 2, "one has freed nothing")
	assert.Nil(t, lines[0].Grown)
	assert.NotNil(t, lines[2].Grown)
	assert.Len(t, l.Buckets.Lifetimes.paths, 1, "a page of stacks")
}
