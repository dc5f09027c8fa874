package tracker_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func markedTracker(t *testing.T, maxMarks int) *tracker.MemTracker {
	t.Helper()
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard, MaxMarks: maxMarks})
	require.NoError(t, err)
	return tr
}

func seqs(marks []*snapshot.Mark) []int {
	var out []int
	for _, m := range marks {
		out = append(out, m.Seq)
	}
	return out
}

func TestMarksKeepsTheLatest(t *testing.T) {
	tr := markedTracker(t, 3)
	assert.Empty(t, tr.Dump().Marks)
	for range 5 {
		tr.Track()
	}
	assert.Equal(t, []int{3, 4, 5}, seqs(tr.Dump().Marks))
	require.NoError(t, tr.Close())
	assert.Empty(t, tr.Dump().Marks)
}

func TestNoMarksWhenNoneAreWanted(t *testing.T) {
	tr := markedTracker(t, -1)
	tr.Track()
	assert.Empty(t, tr.Dump().Marks)
}

func TestWaitMarkGivesTheNextAndSkipsTheForgotten(t *testing.T) {
	tr := markedTracker(t, 2)
	tr.Track()
	m, err := tr.WaitMark(t.Context(), 0)
	require.NoError(t, err)
	assert.Equal(t, 1, m.Seq)
	for range 4 {
		tr.Track()
	}
	m, err = tr.WaitMark(t.Context(), m.Seq)
	require.NoError(t, err)
	assert.Equal(t, 4, m.Seq, "2 and 3 are gone")
}

func TestWaitMarkWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := markedTracker(t, 0)
		got := make(chan int, 2)
		for range 2 {
			go func() {
				m, err := tr.WaitMark(t.Context(), 0)
				if assert.NoError(t, err) {
					got <- m.Seq
				}
			}()
		}
		synctest.Wait()
		assert.Empty(t, got)
		tr.Track()
		synctest.Wait()
		assert.Len(t, got, 2)
	})
}

func TestWaitMarkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := markedTracker(t, 0)
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		wait := func(ctx context.Context) {
			_, err := tr.WaitMark(ctx, 0)
			errs <- err
		}
		go wait(ctx)
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-errs, context.Canceled)

		go wait(t.Context())
		synctest.Wait()
		require.NoError(t, tr.Close())
		assert.ErrorIs(t, <-errs, alloc.ErrClosed)
	})
}

func TestDumpHasTheMarks(t *testing.T) {
	tr := markedTracker(t, 0)
	_, err := tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	m := tr.Track()
	var b bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&b))
	d, err := snapshot.ReadDump(&b)
	require.NoError(t, err)
	require.Len(t, d.Marks, 1)
	assert.Equal(t, m.Delta, d.Marks[0].Delta)
	assert.Equal(t, m.Levels, d.Marks[0].Levels)
}

// Managed memory is registered whole, wherever its pages are.
func TestUntrackedIsUnknownWhereMoreIsRegisteredThanTheDriverHasInUse(t *testing.T) {
	l := snapshot.Levels{Reserved: 10, Registered: alloc.GiB, DriverUsed: 512 * alloc.MiB}
	assert.Equal(t, alloc.Bytes(-1), l.Untracked())
}
