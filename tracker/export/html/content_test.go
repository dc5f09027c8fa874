package html_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// content is the page's data.
type content struct {
	Timeline *timeline.Timeline
	Flame    frame
	Groups   []group
	Pairs    []int
	Kinds    []string
	Uses     []string
	Moments  []moment
	Moment   int
	Marks    []struct {
		Seq, Changes int
		Change       int64
		Site         string `json:"call_site"`
		Rows         []row
	}
}

type group struct {
	Kind, Shape, DType string
	Site               string `json:"call_site"`
	Host               bool
	tally              mem.Tally
}

type moment struct {
	Names                            []string
	At                               int
	Event                            uint64
	Live, Count, Allocated, Reserved int64
	Kinds, Changes                   []int64
	Segments                         *struct {
		Changed  []segment
		Gone     []int
		More     int
		MoreSize int64
	}
}

type segment struct {
	ID         int
	Size, Used int64
	Runs       []int
	Pins       []string
}

type row struct {
	Kind, Shape, DType string
	Count, Bytes       int64
	Sites              []string `json:"call_sites"`
	More               int
}

type frame struct {
	Name, Place string
	Ever        [2]int64
	Calls       []frame
}

// state is what the page shows of a moment: the lines of the table, what the frames of the flame graph hold themselves, and the
// segments.
type state struct {
	groups   []group // that have buffers
	frames   map[int]mem.Tally
	rest     mem.Tally // in the device's memory and in no group that is shown
	segments map[int]segment
}

// at does as the page's script does.
func (c content) at(i int) state {
	s := state{frames: make(map[int]mem.Tally), segments: make(map[int]segment)}
	groups := slices.Clone(c.Groups)
	for _, m := range c.Moments[:i+1] {
		for x := 0; x < len(m.Changes); x += 3 {
			t := mem.Tally{Count: m.Changes[x+1], Bytes: alloc.Bytes(m.Changes[x+2])}
			frame, group := c.Pairs[2*m.Changes[x]], c.Pairs[2*m.Changes[x]+1]
			if frame >= 0 {
				s.frames[frame] = s.frames[frame].Add(t)
			}
			if group >= 0 {
				groups[group].tally = groups[group].tally.Add(t)
			} else {
				s.rest = s.rest.Add(t)
			}
		}
		if m.Segments == nil {
			continue
		}
		for _, segment := range m.Segments.Changed {
			s.segments[segment.ID] = segment
		}
		for _, id := range m.Segments.Gone {
			delete(s.segments, id)
		}
	}
	s.groups = slices.DeleteFunc(groups, func(g group) bool { return g.tally.IsZero() })
	return s
}

// named returns the place of the moment of that name.
func (c content) named(t *testing.T, name string) int {
	t.Helper()
	i := slices.IndexFunc(c.Moments, func(m moment) bool { return slices.Contains(m.Names, name) })
	require.GreaterOrEqual(t, i, 0, name)
	return i
}

// of sums up the groups.
func (s state) of() (sum mem.Tally) {
	for _, g := range s.groups {
		if !g.Host {
			sum = sum.Add(g.tally)
		}
	}
	return sum.Add(s.rest)
}

func contentOf(t *testing.T, page string) (c content) {
	t.Helper()
	_, text, ok := strings.Cut(page, `id="data">`)
	require.True(t, ok)
	require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&c))
	return c
}
