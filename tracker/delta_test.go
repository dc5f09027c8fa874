package tracker_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ofLines returns a difference of one group: a buffer of each of n lines of code.
func ofLines(t testing.TB, n int) snapshot.Delta {
	var sites []mem.CallSiteTally
	for i := range n {
		sites = append(sites, mem.CallSiteTally{
			Frame: mem.Frame{Function: fmt.Sprintf("main.f%d", i%7), File: "main.go", Line: i},
			Tally: mem.Tally{Count: 1, Bytes: 4},
		})
	}
	text, err := json.Marshal(map[string]any{"schema": "gpumemtrack.delta", "version": 1, "changes": []snapshot.Change{{
		Group: snapshot.Group{Kind: tracker.Input, DType: alloc.Float32, Shape: alloc.Shape{1}}, Tally: mem.Tally{Count: int64(n), Bytes: 4 * alloc.Bytes(n)}, CallSites: sites,
	}}})
	require.NoError(t, err)
	var d snapshot.Delta
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// TestDeltasOfManyLines: lines are found again, however many a group has.
func TestDeltasOfManyLines(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 10, 1000} {
		d := ofLines(t, n)
		twice := added(d, d)
		require.Len(t, twice, 1)
		assert.Len(t, twice[0].CallSites, n)
		for _, site := range twice[0].CallSites {
			assert.Equal(t, mem.Tally{Count: 2, Bytes: 8}, site.Tally)
		}
		assert.Equal(t, d, added(d, d, negative(t, d)))
		assert.Empty(t, added(d, negative(t, d)))
	}
}

// TestLinesOfAGroupAreInOrder: the lines that changed in the group's direction come first, and among them larger
// changes; equal ones are in the order of their names.
func TestLinesOfAGroupAreInOrder(t *testing.T) {
	for _, test := range []struct {
		name   string
		counts map[string]int64 // by function
		want   []string
	}{
		{"grown", map[string]int64{"a": 1, "b": -3, "c": 5, "d": 1, "e": -1, "f": 2}, []string{"c", "f", "a", "d", "b", "e"}},
		{"shrunk", map[string]int64{"a": 1, "b": -3, "c": -5, "d": -3, "e": 2, "f": -1}, []string{"c", "b", "d", "f", "e", "a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			change := snapshot.Change{Group: snapshot.Group{Kind: tracker.Input, DType: alloc.Float32, Shape: alloc.Shape{1}}}
			for function, n := range test.counts {
				tally := mem.Tally{Count: n, Bytes: 4 * alloc.Bytes(n)}
				change.Tally = change.Tally.Add(tally)
				change.CallSites = append(change.CallSites, mem.CallSiteTally{Frame: mem.Frame{Function: function, File: "main.go", Line: 1}, Tally: tally})
			}
			text, err := json.Marshal(map[string]any{"schema": "gpumemtrack.delta", "version": 1, "changes": []snapshot.Change{change}})
			require.NoError(t, err)
			var d snapshot.Delta
			require.NoError(t, json.Unmarshal(text, &d))
			for _, c := range added(d) {
				var got []string
				for _, site := range c.CallSites {
					got = append(got, site.Function)
				}
				assert.Equal(t, test.want, got)
			}
		})
	}
}

// added returns the sum of differences.
func added(all ...snapshot.Delta) snapshot.Delta {
	var b snapshot.DeltaBuilder
	for _, d := range all {
		for _, c := range d {
			for _, s := range c.CallSites {
				b.Add(c.Group, s.Frame, s.Tally)
			}
		}
	}
	return b.Delta()
}

func negative(t testing.TB, d snapshot.Delta) (minus snapshot.Delta) {
	var changes []snapshot.Change
	for _, c := range d {
		c.Tally = mem.Tally{}.Sub(c.Tally)
		c.CallSites = slices.Clone(c.CallSites)
		for i := range c.CallSites {
			c.CallSites[i].Tally = mem.Tally{}.Sub(c.CallSites[i].Tally)
		}
		changes = append(changes, c)
	}
	text, err := json.Marshal(map[string]any{"schema": "gpumemtrack.delta", "version": 1, "changes": changes})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &minus))
	return minus
}

// BenchmarkDeltaOfLines is the sum of two differences in which one group has so
// many lines of code: twice the lines take twice the time.
func BenchmarkDeltaOfLines(b *testing.B) {
	for _, n := range []int{8_000, 16_000, 32_000} {
		b.Run(fmt.Sprintf("lines=%d", n), func(b *testing.B) {
			d := ofLines(b, n)
			for b.Loop() {
				added(d, d)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/line")
		})
	}
}

func TestTalliesSaturate(t *testing.T) {
	const most, least = math.MaxInt64, math.MinInt64
	for _, test := range []struct{ a, b, sum, difference int64 }{
		{1, 2, 3, -1},
		{most, 1, most, most - 1},
		{most, -1, most - 1, most},
		{most, most, most, 0},
		{least, -1, least, least + 1},
		{least, 1, least + 1, least},
		{least, least, least, 0},
		{0, least, least, most},
		{-1, least, least, most},
		{most, least, -1, most},
		{least, most, -1, least},
	} {
		a, b := mem.Tally{Count: test.a, Bytes: alloc.Bytes(test.a)}, mem.Tally{Count: test.b, Bytes: alloc.Bytes(test.b)}
		assert.Equal(t, mem.Tally{Count: test.sum, Bytes: alloc.Bytes(test.sum)}, a.Add(b), "%d + %d", test.a, test.b)
		assert.Equal(t, mem.Tally{Count: test.difference, Bytes: alloc.Bytes(test.difference)}, a.Sub(b), "%d - %d", test.a, test.b)
	}
}
