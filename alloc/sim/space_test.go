package sim

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSpaceAgainstBitmap compares the holes with a slice that has a flag for each unit.
func TestSpaceAgainstBitmap(t *testing.T) {
	const units = 40
	lowest := func(used []bool, n int) int {
		for first := range len(used) - n + 1 {
			if !slices.Contains(used[first:first+n], true) {
				return first
			}
		}
		return -1
	}
	rapid.Check(t, func(t *rapid.T) {
		s, used := newSpace(units), make([]bool, units)
		var taken []span
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(1, units).Draw(t, "n")
				first, ok := s.take(uint64(n))
				want := lowest(used, n)
				require.Equal(t, want >= 0, ok)
				if ok {
					require.Equal(t, uint64(want), first)
					taken = append(taken, span{first, uint64(n)})
					for i := range n {
						used[want+i] = true
					}
				}
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("nothing is taken")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "i")
				s.give(taken[i])
				for unit := taken[i].first; unit < taken[i].end(); unit++ {
					used[unit] = false
				}
				taken = slices.Delete(taken, i, i+1)
			},
			"": func(t *rapid.T) {
				free := uint64(0)
				for i, hole := range s.holes {
					free += hole.n
					require.NotZero(t, hole.n)
					require.True(t, i == 0 || s.holes[i-1].end() < hole.first, "holes that touch: %v", s.holes)
				}
				count := 0
				for _, u := range used {
					if !u {
						count++
					}
				}
				require.Equal(t, uint64(count), free)
			},
		})
	})
}
