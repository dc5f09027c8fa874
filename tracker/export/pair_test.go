package export_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// run returns a process of each rank; of a negative one, whose rank is not known.
func run(ranks ...int) (processes []*export.Usage) {
	for _, rank := range ranks {
		u := usage(map[int]alloc.Bytes{1: alloc.Bytes(100 + rank)})
		if rank >= 0 {
			u.Origin.Rank = &rank
		}
		processes = append(processes, u)
	}
	return processes
}

func TestPairsAreOfOneRank(t *testing.T) {
	before, after := run(2, 0, 10), run(10, 0, 1, 2)
	b, a := export.Pair(before, after)
	assert.Equal(t, []*export.Usage{before[0], before[1], before[2], nil}, b)
	assert.Equal(t, []*export.Usage{after[3], after[1], after[0], after[2]}, a)

	_, sum := export.Compare(b, a, export.BySite, export.OfLive)
	assert.Equal(t, []tracker.Tally{{}, {}, {}, tally(1, 101)}, sum.Ranks, "each against itself, and rank 1 against nothing")

	gone, _ := export.Pair(before, run(0))
	assert.Len(t, gone, 3)
}

func TestPairsAreOfOnePlaceWhereRanksDoNotTell(t *testing.T) {
	for name, runs := range map[string][2][]*export.Usage{
		"unknown":        {run(-1, -1), run(-1)},
		"partly":         {run(1, 0), run(0, -1)},
		"twice":          {run(1, 0), run(0, 0, 1)},
		"of one run":     {run(-1), run(1, 0)},
		"nothing at all": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := slices.Clone(runs[0]), slices.Clone(runs[1])
			b, a := export.Pair(runs[0], runs[1])
			assert.Len(t, b, max(len(before), len(after)))
			assert.Len(t, a, len(b))
			assert.Equal(t, before, runs[0])
			for i := range b {
				if i < len(before) {
					assert.Same(t, before[i], b[i])
				} else {
					assert.Nil(t, b[i])
				}
				if i < len(after) {
					assert.Same(t, after[i], a[i])
				} else {
					assert.Nil(t, a[i])
				}
			}
		})
	}
}
