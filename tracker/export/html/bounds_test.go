package html_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestPageOfManyMarks(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxMarks: 1000})
	for range 1000 {
		tr.Track()
	}
	page := write(t, tr.Dump())
	c := contentOf(t, page)
	require.Len(t, c.Marks, 200)
	assert.Equal(t, 1000, c.Marks[199].Seq)
	contains(t, page, "The tables of 800 earlier marks are left out.")
	assert.Len(t, c.Timeline.Marks, 500)
}

func TestPageLeavesOutTheSmall(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	for i := range 3000 {
		_, err := tr.AllocBytes(alloc.Bytes(i+1), tracker.Input)
		require.NoError(t, err)
		tr.Track()
	}
	c := contentOf(t, write(t, tr.Dump()))
	end := c.at(c.Moment)
	assert.Greater(t, len(end.groups), 300)
	assert.LessOrEqual(t, len(c.Groups), 1000)
	assert.Equal(t, tr.Snapshot().Live, end.of())
	largest := slices.MaxFunc(end.groups, func(x, y group) int { return int(x.tally.Bytes - y.tally.Bytes) })
	assert.Equal(t, alloc.Bytes(3000), largest.tally.Bytes)
}

// wide is a dump with so many call stacks, each of its own line, with names of
// some length.
func wide(stacks, depth, name int) *snapshot.Dump {
	frames := make([]mem.Stack, stacks)
	tensor := &tables.Tensor{Kind: "Input", DType: alloc.Float32, Shape: alloc.Shape{256}, Each: 1024}
	lists := tables.Tables{Stacks: lines(frames), Sections: []string{""}}
	for i := range frames {
		for d := range depth {
			id := i
			if d > depth/2 {
				id = i % 100 // callers are shared
			}
			frames[i] = append(frames[i], mem.Frame{
				Function: fmt.Sprintf("main.%s%d", strings.Repeat("f", name), id), File: "/src/main.go", Line: d*stacks + id + 1,
			})
		}
		lists.Sites = append(lists.Sites, tables.SiteEntry{
			Place: tables.Place{Stack: tables.StackID(i)}, Tensor: tensor, Live: int64(i + 1), Peak: 1, Total: int64(i + 1),
		})
	}
	return &snapshot.Dump{Snapshot: &snapshot.Snapshot{Device: "wide", Tables: tables.Wrap(lists)}}
}

// lines are stacks by number.
type lines []mem.Stack

func (l lines) Stack(id tables.StackID) mem.Stack { return l[id] }
func (l lines) Site(id tables.StackID) mem.Frame  { return l[id][0] }
func (l lines) Path(id tables.StackID) mem.Path   { return l[id].Path() }

// TestPageIsBounded whatever the dump holds, and says what is left out.
func TestPageIsBounded(t *testing.T) {
	for _, r := range []*snapshot.Dump{wide(20_000, 4, 10), wide(3000, 60, 10), wide(2000, 20, 5000)} {
		page := write(t, r)
		assert.LessOrEqual(t, len(page), 2<<20)
		c := contentOf(t, page)
		assert.Positive(t, frames(c.Flame))
		assert.LessOrEqual(t, frames(c.Flame), 2501)
	}
}

func frames(f frame) int {
	n := 1
	for _, c := range f.Calls {
		n += frames(c)
	}
	return n
}

// BenchmarkSites shows that the cost grows as the call sites do.
func BenchmarkSites(b *testing.B) {
	for _, n := range []int{10_000, 20_000, 40_000, 80_000} {
		b.Run(fmt.Sprintf("sites=%d", n), func(b *testing.B) {
			r := wide(n, 4, 10)
			for b.Loop() {
				if err := html.Write(io.Discard, r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/site")
		})
	}
}
