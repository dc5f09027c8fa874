package export_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func tally(count int64, bytes alloc.Bytes) mem.Tally {
	return mem.Tally{Count: count, Bytes: bytes}
}

// usage has one buffer a line of main.go.
func usage(bytes map[int]alloc.Bytes) *export.Usage {
	u := new(export.Usage)
	for line, n := range bytes {
		u.Rows = append(u.Rows, export.Row{
			CallSite: mem.Frame{File: "main.go", Line: line, Function: "main.f"},
			Kind:     "Input", Totals: snapshot.Totals{Live: tally(1, n), Peak: tally(2, 2*n), Total: tally(3, 3*n)},
		})
	}
	return u
}

func TestCompareOrdersByChange(t *testing.T) {
	before := usage(map[int]alloc.Bytes{1: 100, 2: 50, 3: 10, 5: 7})
	after := usage(map[int]alloc.Bytes{1: 120, 2: 20, 4: 60, 5: 7})
	lines, sum := export.Compare([]*export.Usage{before}, []*export.Usage{after}, "line", "live")

	var got []string
	var changes []alloc.Bytes
	for _, l := range lines {
		got = append(got, l.Key)
		changes = append(changes, l.Change().Bytes)
	}
	assert.Equal(t, []string{"main.go:4 main.f", "main.go:1 main.f", "main.go:2 main.f", "main.go:3 main.f", "main.go:5 main.f"}, got)
	assert.Equal(t, []alloc.Bytes{60, 20, -30, -10, 0}, changes)
	assert.Equal(t, tally(4, 167), sum.Before)
	assert.Equal(t, tally(4, 207), sum.After)
}

func TestCompareOfManyRanks(t *testing.T) {
	before := []*export.Usage{usage(map[int]alloc.Bytes{1: 10}), usage(map[int]alloc.Bytes{1: 10})}
	after := []*export.Usage{usage(map[int]alloc.Bytes{1: 15}), usage(map[int]alloc.Bytes{1: 40}), usage(map[int]alloc.Bytes{1: 1})}
	lines, _ := export.Compare(before, after, "line", "live")

	assert.Equal(t, tally(2, 20), lines[0].Before)
	assert.Equal(t, tally(3, 56), lines[0].After)
	assert.Equal(t, []mem.Tally{tally(0, 5), tally(0, 30), tally(1, 1)}, lines[0].Ranks)
}

func TestCompareByAndOf(t *testing.T) {
	site := mem.Frame{Function: "f", File: "x.go", Line: 1}
	stack := mem.Stack{{Function: "library.New"}, site, {Function: "main.main"}, {Function: "runtime.main"}}
	u := &export.Usage{Rows: []export.Row{
		{Kind: "Input", Shape: "(2)", DType: "int8", Section: "a", Device: "GPU [1]", Stream: "default stream", Stack: stack, CallSite: site, Totals: snapshot.Totals{Live: tally(1, 2), Peak: tally(1, 3), Total: tally(1, 4)}},
		{Totals: snapshot.Totals{Live: tally(1, 1), Peak: tally(1, 1), Total: tally(1, 1)}},
	}}
	for by, want := range map[string][]string{
		"line":     {"x.go:1 f", "unknown"},
		"function": {"f", "unknown"},
		"path":     {"f <- main.main", "unknown"},
		"shape":    {"(2) int8", "unknown"},
		"kind":     {"Input", "unknown"},
		"section":  {"a", "no section"},
		"device":   {"GPU [1]", "unknown"},
		"stream":   {"default stream", "unknown"},
	} {
		lines, _ := export.Compare(nil, []*export.Usage{u}, by, "live")
		assert.Equal(t, want, []string{lines[0].Key, lines[1].Key})
	}
	for of, want := range map[string]alloc.Bytes{"live": 3, "peak": 4, "total": 5} {
		_, sum := export.Compare(nil, []*export.Usage{u}, "line", of)
		assert.Equal(t, want, sum.After.Bytes)
	}
}

// A summary compares as what it was made of.
func TestSummaryComparesTheSame(t *testing.T) {
	before := []*export.Usage{usage(map[int]alloc.Bytes{1: 10, 2: 7}), nil}
	after := []*export.Usage{usage(map[int]alloc.Bytes{1: 15}), usage(map[int]alloc.Bytes{1: 40, 3: 1})}
	after[1].Rows[0].CallSite.File = "else/main.go"
	for _, by := range export.Bys() {
		for _, of := range []string{"live", "peak", "total"} {
			lines, sum := export.Compare(before, after, by, of)
			short := []*export.Usage{after[0].Summary(by, of), after[1].Summary(by, of)}
			assert.Empty(t, short[0].Rows)
			its, whole := export.Compare([]*export.Usage{before[0].Summary(by, of), nil}, short, by, of)
			assert.Equal(t, lines, its, "%s of %s", of, by)
			assert.Equal(t, sum, whole)
		}
	}
}

// Summaries share their lines with others that have nearly the same, in any order.
func TestSummariesOfNearlyTheSameLines(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var full, short []*export.Usage
	for range 200 {
		u := &export.Usage{}
		for _, line := range random.Perm(20)[:20-random.IntN(4)] {
			row := export.Row{CallSite: mem.Frame{Function: "main.step", File: "main.go", Line: 1 + line}}
			row.Live = mem.Tally{Count: 1, Bytes: alloc.Bytes(1 + random.IntN(100))}
			u.Rows = append(u.Rows, row)
		}
		full, short = append(full, u), append(short, u.Summary("line", "live"))
	}
	lines, sum := export.Compare(full[:100], full[100:], "line", "live")
	its, whole := export.Compare(short[:100], short[100:], "line", "live")
	assert.Equal(t, lines, its)
	assert.Equal(t, sum, whole)
	for _, l := range its {
		for rank := range l.Ranks {
			var want mem.Tally
			for _, row := range full[100+rank].Rows {
				if row.CallSite.String() == l.Key {
					want = want.Add(row.Live)
				}
			}
			for _, row := range full[rank].Rows {
				if row.CallSite.String() == l.Key {
					want = want.Sub(row.Live)
				}
			}
			require.Equal(t, want, l.Ranks[rank], "%s of %d", l.Key, rank)
		}
	}
}
