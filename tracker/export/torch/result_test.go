package torch

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// TestLeaksAreThoseOfTheProgram holds that a pickle with all events says of leaks what its program
// said, but that its times are microseconds.
func TestLeaksAreThoseOfTheProgram(t *testing.T) {
	for name, tr := range map[string]*tracker.MemTracker{"forgotten": exporttest.Leaky(t), "growing": growing(t)} {
		t.Run(name, func(t *testing.T) {
			c, err := read(bytes.NewReader(write(t, tr.Dump())))
			require.NoError(t, err)
			got := c.Dump.Snapshot
			if name == "forgotten" {
				require.Len(t, tr.Suspects(), 1)
			} else {
				require.Len(t, leaks.Growing(tr.Snapshot()), 1)
			}
			suspects := leaks.Suspects(got)
			require.Len(t, suspects, len(tr.Suspects()))
			for i, want := range tr.Suspects() {
				assert.Equal(t, want.String(), suspects[i].String())
			}
			growth := leaks.Growing(got)
			require.Len(t, growth, len(leaks.Growing(tr.Snapshot())))
			for i, want := range leaks.Growing(tr.Snapshot()) {
				assert.Equal(t, want.String(), growth[i].String())
			}

			var file bytes.Buffer
			require.NoError(t, c.Dump.WriteJSON(&file))
			again, err := snapshot.ReadDump(&file)
			require.NoError(t, err)
			assert.Equal(t, suspects, leaks.Suspects(again.Snapshot))
			assert.Equal(t, growth, leaks.Growing(again.Snapshot))
		})
	}
}

// TestOldBuffersAreNoLeaks reads a history that begins late: buffers older than it are not named.
func TestOldBuffersAreNoLeaks(t *testing.T) {
	d := exporttest.Leaky(t).Dump()
	lists := tables.Of(&d.Snapshot.Tables)
	lists.Lines, lists.Paths = nil, nil
	h := tables.OfHistory(&d.History)
	late := len(h.Events) - len(h.Events)/50
	h.Events, h.First = h.Events[late:], h.First+uint64(late)
	c, err := read(bytes.NewReader(write(t, d)))
	require.NoError(t, err)
	assert.NotNil(t, tables.Of(&c.Dump.Snapshot.Tables).Paths)
	assert.Empty(t, leaks.Suspects(c.Dump.Snapshot))
}

// TestWithoutEventsNothingIsKnownOfLeaks reads a file of live buffers alone.
func TestWithoutEventsNothingIsKnownOfLeaks(t *testing.T) {
	c, err := read(bytes.NewReader(write(t, &snapshot.Dump{Snapshot: exporttest.Leaky(t).Snapshot()})))
	require.NoError(t, err)
	assert.Nil(t, tables.Of(&c.Dump.Snapshot.Tables).Paths)
}

// growing returns a tracker whose program keeps one more buffer each minute, for two hours, on one
// of the two call paths to a line.
func growing(t *testing.T) *tracker.MemTracker {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	entry := func() *tracker.Buffer {
		b, err := tr.AllocBytes(alloc.KiB, tracker.Temporary)
		require.NoError(t, err)
		return b
	}
	work := func() *tracker.Buffer { return entry() }
	keep := func() *tracker.Buffer { return entry() }
	for range 120 {
		for range 6 {
			b := work()
			now = now.Add(10 * time.Second)
			require.NoError(t, b.Free())
		}
		keep()
	}
	return tr
}
