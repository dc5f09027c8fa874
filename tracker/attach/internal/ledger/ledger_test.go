package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestSizesThatNeverRepeat keep the ledger small.
func TestSizesThatNeverRepeat(t *testing.T) {
	l := New(new(symbols.StackTable), 1<<10)
	for i := range 4 * leastSweep {
		size := alloc.Bytes(1000 + i)
		b := &buffer{site: l.site(tensorKey{memory: alloc.DeviceMemory, each: size}, 0, 0), ledger: l, ptr: 0x100}
		l.add(b, time.Duration(i), mem.Allocated)
		l.remove(b, time.Duration(i), mem.Freed)
	}
	assert.LessOrEqual(t, len(l.sites), leastSweep)
	assert.LessOrEqual(t, len(l.changed), leastSweep)
	assert.LessOrEqual(t, len(l.tensors), leastSweep)
	var at snapshot.Snapshot
	l.Copy(&at, time.Time{}, alloc.DeviceMemory, true)
	assert.EqualValues(t, 4*leastSweep, at.Total.Count)
	assert.Zero(t, at.Live.Count)
}
