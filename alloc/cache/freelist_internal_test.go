package cache

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// checkPool compares a pool with a plain list of blocks.
func checkPool(t *testing.T, sizes *rapid.Generator[alloc.Bytes], open func(*slab.Slab[block]) freeList, check func(t *rapid.T, got *block, want []*block)) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := new(slab.Slab[block])
		p := open(blocks)
		var held []id
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				i, b := blocks.Get()
				b.ptr, b.size = alloc.Ptr(i)*1000, sizes.Draw(t, "size")
				p.add(i, b)
				held = append(held, i)
			},
			"remove": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				at := rapid.IntRange(0, len(held)-1).Draw(t, "at")
				p.remove(held[at], blocks.At(held[at]))
				blocks.Put(held[at])
				held = slices.Delete(held, at, at+1)
			},
			"": func(t *rapid.T) {
				size := sizes.Draw(t, "wanted")
				var fitting []*block
				largest := alloc.Bytes(0)
				for _, i := range held {
					b := blocks.At(i)
					largest = max(largest, b.size)
					if b.size >= size {
						fitting = append(fitting, b)
					}
				}
				require.Equal(t, largest, p.largest())
				got := p.fit(size)
				if len(fitting) == 0 {
					require.Equal(t, none, got)
					return
				}
				require.NotEqual(t, none, got)
				slices.SortFunc(fitting, func(a, b *block) int {
					return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr))
				})
				check(t, blocks.At(got), fitting)
			},
		})
	})
}

func TestBins(t *testing.T) {
	sizes := rapid.Map(rapid.IntRange(1, binCount), func(units int) alloc.Bytes { return alloc.Bytes(units) * blockUnit })
	near := rapid.SampledFrom([]alloc.Bytes{512, 64 * 512, 65 * 512, smallLimit, smallSegment - 512, smallSegment})
	checkPool(t, rapid.OneOf(sizes, near), func(s *slab.Slab[block]) freeList { return &bins{blocks: s} },
		func(t *rapid.T, got *block, want []*block) {
			require.Equal(t, want[0], got, "the smallest that fits, and the lowest of those")
		})
}

func TestTree(t *testing.T) {
	sizes := rapid.Map(rapid.IntRange(1, 20), func(mib int) alloc.Bytes { return alloc.Bytes(mib) * alloc.MiB })
	var p *tree
	open := func(s *slab.Slab[block]) freeList {
		p = &tree{blocks: s}
		return p
	}
	checkPool(t, sizes, open, func(t *rapid.T, got *block, want []*block) {
		require.Equal(t, want[0], got, "the smallest that fits, and the lowest of those")
		requireHeap(t, p, p.root)
	})
}

// requireHeap checks that each block of a tree has a lower priority than its parent, which keeps the tree shallow.
func requireHeap(t *rapid.T, p *tree, i id) {
	if i == none {
		return
	}
	for _, below := range []id{p.blocks.At(i).left, p.blocks.At(i).right} {
		require.True(t, below == none || priority(below) < priority(i))
		requireHeap(t, p, below)
	}
}

// TestTreeStaysShallow adds blocks in order of size, the worst for a tree
// without balance.
func TestTreeStaysShallow(t *testing.T) {
	const count = 1 << 15
	blocks := new(slab.Slab[block])
	p := tree{blocks: blocks}
	for range count {
		i, b := blocks.Get()
		*b = block{ptr: alloc.Ptr(i), size: alloc.Bytes(i)}
		p.add(i, b)
	}
	var depth func(id) int
	depth = func(i id) int {
		if i == none {
			return 0
		}
		return 1 + max(depth(blocks.At(i).left), depth(blocks.At(i).right))
	}
	require.Less(t, depth(p.root), 3*15, "random treaps of this size are near 35 deep")
}

// TestTrimInSteps empties a cache of more segments than are looked at in one go, of which
// every third is in use.
func TestTrimInSteps(t *testing.T) {
	const n = 3*segmentsAtOnce + 7
	c := mustNew(t, counting.New(0), Config{})
	var ptrs []alloc.Ptr
	for range n {
		p, err := c.Alloc(11 * alloc.MiB)
		require.NoError(t, err)
		ptrs = append(ptrs, p)
	}
	used := 0
	for i, p := range ptrs {
		if i%3 == 0 {
			used++
		} else {
			require.NoError(t, c.Free(p))
		}
	}
	given, err := c.Trim()
	require.NoError(t, err)
	require.Equal(t, alloc.Bytes(n-used)*12*alloc.MiB, given)
	require.Len(t, c.segments, used)
	for i, s := range c.segments {
		require.Equal(t, ptrs[3*i], s.ptr)
	}
	for i := 0; i < n; i += 3 {
		require.NoError(t, c.Free(ptrs[i]))
	}
	require.NoError(t, c.Close())
	require.Empty(t, c.segments)
}

// TestExpandableTrimInSteps gives more chunks back than are looked at in one go: every
// other one of a segment.
func TestExpandableTrimInSteps(t *testing.T) {
	const n = 3*segmentsAtOnce + 7
	c := mustNew(t, counting.New(0), Config{ExpandableSegments: true})
	var ptrs []alloc.Ptr
	for range 2 * n {
		p, err := c.Alloc(20 * alloc.MiB)
		require.NoError(t, err)
		ptrs = append(ptrs, p)
	}
	free := func(from int) {
		for i := from; i < len(ptrs); i += 2 {
			require.NoError(t, c.Free(ptrs[i]))
		}
	}
	free(0)
	looked, last, leaving := 0, block{}, []id(nil)
	x := c.growth.(*expandable)
	tree := &c.streams.own.free[large].(*growingTree).tree
	for more := true; more; looked++ {
		before := len(leaving)
		more = x.detachSome(tree, &last, &leaving)
		require.LessOrEqual(t, len(leaving)-before, segmentsAtOnce)
	}
	require.Len(t, leaving, n)
	require.Equal(t, 4, looked)
	for _, i := range leaving {
		x.reattach(i)
	}
	given, err := c.Trim()
	require.NoError(t, err)
	require.Equal(t, alloc.Bytes(n)*20*alloc.MiB, given)
	free(1)
	require.NoError(t, c.Close())
	require.Empty(t, c.segments)
}
