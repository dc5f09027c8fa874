package walk_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// model has for each address the span that it is in, by the number of Users; 0 for none.
type model []int

// cut takes addresses up to the first that is in no span.
func (m model) cut(p alloc.Ptr, n int) {
	for i := range n {
		if m[int(p)+i] == 0 {
			return
		}
		m[int(p)+i] = 0
	}
}

func (m model) insert(s walk.Span) (size int) {
	for size < int(s.Size) && m[int(s.Ptr)+size] == 0 {
		m[int(s.Ptr)+size] = s.Users
		size++
	}
	return size
}

func compare(t *testing.T, spans *walk.Spans, want model) {
	got := make(model, len(want))
	sum, last := alloc.Bytes(0), alloc.Ptr(0)
	for s := range spans.All {
		require.GreaterOrEqual(t, s.Ptr, last, "they are in order, and none overlap")
		require.Equal(t, s, spans.At(s.End()-1))
		got.insert(*s)
		sum, last = sum+s.Size, s.End()
	}
	require.Equal(t, want, got)
	require.Equal(t, sum, spans.Bytes)
}

// TestJoin joins pieces that tile a span, and leaves others as they are.
func TestJoin(t *testing.T) {
	for _, c := range []struct {
		pieces []walk.Span
		joined bool
	}{
		{[]walk.Span{{Ptr: 10, Size: 5}, {Ptr: 15, Size: 5}}, true},
		{[]walk.Span{{Ptr: 10, Size: 10}}, true},
		{[]walk.Span{{Ptr: 10, Size: 5}, {Ptr: 16, Size: 4}}, false},
		{[]walk.Span{{Ptr: 10, Size: 5}, {Ptr: 15, Size: 6}}, false},
		{[]walk.Span{{Ptr: 9, Size: 6}, {Ptr: 15, Size: 5}}, false},
	} {
		var spans walk.Spans
		for _, s := range c.pieces {
			spans.Insert(s)
		}
		want := c.pieces
		if c.joined {
			want = []walk.Span{{Ptr: 10, Size: 10, Expandable: true}}
		}
		spans.Join(walk.Span{Ptr: 10, Size: 10, Expandable: true})
		var got []walk.Span
		for s := range spans.All {
			got = append(got, *s)
		}
		require.Equal(t, want, got)
	}
}

// TestSpans does the same with spans and with the model, of so many that there are several runs.
func TestSpans(t *testing.T) {
	const addresses, longest = 20_000, 40
	random := rand.New(rand.NewPCG(1, 2))
	var spans walk.Spans
	want := make(model, addresses+longest)
	for number := 1; number < 30_000; number++ {
		p, n := alloc.Ptr(random.IntN(addresses)), 1+random.IntN(longest)
		switch found := spans.At(p); {
		case found == nil:
			s := walk.Span{Ptr: p, Size: alloc.Bytes(1 + random.IntN(8)), Users: number}
			require.Equal(t, want.insert(s), int(spans.Insert(s).Size))
		case number%5 == 0:
			want.cut(p, n)
			spans.Cut(p, alloc.Bytes(n))
		case number%7 == 0:
			want.cut(found.Ptr, int(found.Size))
			spans.Remove(found.Ptr)
		}
		if number%1000 == 0 {
			compare(t, &spans, want)
		}
	}
}

// TestSpanOf has all of a segment that a span knows.
func TestSpanOf(t *testing.T) {
	s := alloc.Segment{Ptr: 1, Size: 2, Pool: "small", Stream: 3, Expandable: true, Private: "graph"}
	require.Equal(t, walk.Span{Ptr: 1, Size: 2, Pool: "small", Stream: 3, Expandable: true, Private: "graph"}, walk.SpanOf(&s))
}

// TestAllStops when its user does.
func TestAllStops(t *testing.T) {
	var spans walk.Spans
	for i := range 2000 {
		spans.Insert(walk.Span{Ptr: alloc.Ptr(10 * i), Size: 5})
	}
	for _, n := range []int{1, 600, 2000} {
		seen := 0
		for range spans.All {
			if seen++; seen == n {
				break
			}
		}
		require.Equal(t, n, seen)
	}
}
