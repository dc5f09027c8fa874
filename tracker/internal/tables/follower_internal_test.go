package tables

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestFollowerIsBounded: of too many lines, those that hold most are followed.
func TestFollowerIsBounded(t *testing.T) {
	g := NewFollower(-1)
	line := func(i int) mem.Frame { return mem.Frame{Function: fmt.Sprintf("main.f%d", i)} }
	for mark := range 40 {
		for i := range 3 * maxFollowed {
			g.Note(line(i), mem.Tally{Count: int64(1 + i%1000/999), Bytes: alloc.Bytes(1 + i%1000/999)})
		}
		g.Mark(mark+1, 0)
		require.LessOrEqual(t, len(g.lines), maxFollowed)
	}
	for i := range 3 {
		assert.Contains(t, g.lines, line(999+1000*i))
	}
}
