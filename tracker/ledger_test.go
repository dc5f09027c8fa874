package tracker_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// atPeak returns the number of buffers live at the peak, by shape.
func atPeak(s *snapshot.Snapshot) map[string]int64 {
	counts := make(map[string]int64)
	for site := range s.CallSites() {
		if site.Peak.Count > 0 {
			counts[site.Shape.String()] += site.Peak.Count
		}
	}
	return counts
}

func TestWhatWasLiveAtThePeakIsKnown(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	kept := take(t, tr, tracker.Parameter, 100)
	temporary := take(t, tr, tracker.Temporary, 1000)
	require.NoError(t, temporary.Free())
	take(t, tr, tracker.Activation, 10)
	require.NoError(t, kept.Free())

	s := tr.Snapshot()
	assert.Equal(t, map[string]int64{"(100,)": 1, "(1000,)": 1}, atPeak(s))
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 4400}, s.Peak)

	tr.ResetPeak()
	assert.Equal(t, map[string]int64{"(10,)": 1}, atPeak(tr.Snapshot()))

	take(t, tr, tracker.Temporary, 1000) // a new peak forgets the old one
	assert.Equal(t, map[string]int64{"(10,)": 1, "(1000,)": 1}, atPeak(tr.Snapshot()))
}

// TestShapesThatNeverRepeat: the table of cells must not grow with the number
// of shapes ever seen, nor may the sum by stack be lost.
func TestShapesThatNeverRepeat(t *testing.T) {
	const n = 20_000
	tr, _ := open(t, tracker.Config{})
	first := take(t, tr, tracker.Parameter, n+1)
	for i := range n {
		buf := take(t, tr, tracker.Activation, i)
		require.NoError(t, buf.Free())
		if i == n/2 {
			tr.Track()
		}
	}
	s := tr.LightSnapshot()
	sites := slices.Collect(s.CallSites())
	assert.Less(t, len(sites), 1000)
	var total mem.Tally
	for _, site := range sites {
		total = total.Add(site.Total)
	}
	assert.Equal(t, mem.Tally{Count: n + 1, Bytes: 4*(n+1) + 4*n*(n-1)/2}, total)
	assert.Equal(t, s.Total, total)
	require.NoError(t, first.Free())
	assert.Equal(t, "- | 1 * (20001,) | 78.1 KiB | Parameter | float32 | helpers_test.go:68 tracker_test.take", tr.Track().Delta[0].String())
}

func TestDeltaOfGroupThatMovedToAnotherLine(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	old := take(t, tr, tracker.Input, 7)
	tr.Track()
	require.NoError(t, old.Free())
	_, err := tr.Alloc(alloc.Shape{7}, alloc.Float32, tracker.Input)
	require.NoError(t, err)
	assert.Empty(t, tr.Track().Delta, "one went and one came: the count is the same")
}

func TestHistoryIsBounded(t *testing.T) {
	tr, _ := open(t, tracker.Config{MaxEvents: 5, NoCache: true})
	for i := range 4 {
		require.NoError(t, take(t, tr, tracker.Input, i).Free())
	}
	var seqs []uint64
	for e := range tr.Dump().Events() {
		seqs = append(seqs, e.Seq)
		assert.Contains(t, e.Stack[0].Function, "take")
	}
	assert.Equal(t, []uint64{3, 4, 5, 6, 7}, seqs)

	none, _ := open(t, tracker.Config{MaxEvents: -1, NoCache: true})
	take(t, none, tracker.Input, 3)
	assert.Empty(t, slices.Collect(none.Dump().Events()))
	assert.Contains(t, none.Dump().String(), "dump: 0 events, after 1 that were dropped, 0 marks\n")
}

func TestLibrariesArePassedOver(t *testing.T) {
	tr, _ := open(t, tracker.Config{Libraries: []string{"github.com/gpumemtrack/gpumemtrack/tracker_test"}})
	take(t, tr, tracker.Input, 3)
	for _, c := range tr.Track().Delta {
		assert.Equal(t, "testing.tRunner", c.CallSites[0].Function)
	}
}
