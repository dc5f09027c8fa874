package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// virtual returns a device on which segments can grow.
func virtual(t require.TestingT) alloc.Device {
	dev, err := sim.New(sim.Config{})
	require.NoError(t, err)
	return dev
}

// TestBlockAt looks for blocks by address in two long segments, while blocks come and go and a segment
// goes and comes back, so that hints become records of other blocks.
func TestBlockAt(t *testing.T) {
	c := mustNew(t, virtual(t), Config{ExpandableSegments: true})
	random := rand.New(rand.NewPCG(1, 2))
	var live []alloc.Ptr
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		for len(live) < 8*stride {
			p, _, err := c.AllocOn(alloc.Bytes(1+random.IntN(4))*512, alloc.Stream(random.IntN(2)))
			require.NoError(t, err)
			live = append(live, p)
		}
		random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		for range 200 {
			p := live[random.IntN(len(live))] + alloc.Ptr(random.IntN(4096))
			require.Equal(t, walkTo(c, p), c.blockAt(p))
		}
		require.NotEmpty(t, c.hints.of)
		keep := len(live) / 2
		if round%4 == 3 {
			keep = 0
		}
		for _, p := range live[keep:] {
			require.NoError(t, c.Free(p))
		}
		if live = live[:keep]; keep == 0 {
			_, err := c.Trim()
			require.NoError(t, err)
		}
	}
	require.LessOrEqual(t, len(c.hints.of), stride)
}

// TestHintsAreAStrideApart: one search of a long segment leaves a hint each stride blocks, so that the next one takes a
// stride of steps at most.
func TestHintsAreAStrideApart(t *testing.T) {
	c := mustNew(t, virtual(t), Config{ExpandableSegments: true})
	var first, last alloc.Ptr
	for i := range 3*stride + 10 {
		p, err := c.Alloc(512)
		require.NoError(t, err)
		if i == 0 {
			first = p
		}
		last = p
	}
	require.Equal(t, last, c.blocks.At(c.blockAt(last)).ptr)
	var at []alloc.Ptr
	for _, i := range c.hints.of {
		at = append(at, (c.blocks.At(i).ptr-first)/512)
	}
	require.Equal(t, []alloc.Ptr{stride, 2 * stride, 3 * stride}, at)
	require.Equal(t, last, c.blocks.At(c.blockAt(last)).ptr)
	require.Len(t, c.hints.of, 3, "a search that starts at a hint needs no other")
}

// TestHintsAreTheLatest: a new hint replaces the oldest one.
func TestHintsAreTheLatest(t *testing.T) {
	var h hints
	for i := range 2*stride + 3 {
		h.add(id(i))
	}
	require.Len(t, h.of, stride)
	slices.Sort(h.of)
	require.Equal(t, id(stride+3), h.of[0])
	require.Equal(t, id(2*stride+2), h.of[stride-1])
	require.Len(t, slices.Compact(h.of), stride)
}

// walkTo is blockAt, from the first block of the segment.
func walkTo(c *Cache, p alloc.Ptr) id {
	s, ok := c.segments.at(p)
	if !ok {
		return none
	}
	i := s.first
	for c.blocks.At(i).end() <= p {
		i = c.blocks.At(i).next
	}
	return i
}

// BenchmarkBlockAt finds a block by its address, at random, among blocks of one segment.
func BenchmarkBlockAt(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			c, err := New(virtual(b), Config{ExpandableSegments: true})
			require.NoError(b, err)
			live := make([]alloc.Ptr, n)
			for i := range live {
				live[i], _, err = c.AllocOn(512, 0)
				require.NoError(b, err)
			}
			random := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				c.blockAt(live[random.IntN(n)])
			}
		})
	}
}
