package alloc

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pool is what bins and tree have in common.
type pool interface {
	add(id)
	remove(id)
	fit(Bytes) id
	largest() Bytes
}

// checkPool compares a pool with a plain list of blocks.
func checkPool(t *testing.T, sizes *rapid.Generator[Bytes], open func(*slab) pool, check func(t *rapid.T, got *block, want []*block)) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := new(slab)
		p := open(blocks)
		var held []id
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				i, b := blocks.get()
				b.ptr, b.size = Ptr(i)*1000, sizes.Draw(t, "size")
				p.add(i)
				held = append(held, i)
			},
			"remove": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				at := rapid.IntRange(0, len(held)-1).Draw(t, "at")
				p.remove(held[at])
				blocks.put(held[at])
				held = slices.Delete(held, at, at+1)
			},
			"": func(t *rapid.T) {
				size := sizes.Draw(t, "wanted")
				var fitting []*block
				largest := Bytes(0)
				for _, i := range held {
					b := blocks.at(i)
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
				check(t, blocks.at(got), fitting)
			},
		})
	})
}

func TestBins(t *testing.T) {
	sizes := rapid.Map(rapid.IntRange(1, binCount), func(units int) Bytes { return Bytes(units) * blockUnit })
	near := rapid.SampledFrom([]Bytes{512, 64 * 512, 65 * 512, smallLimit, smallSegment - 512, smallSegment})
	checkPool(t, rapid.OneOf(sizes, near), func(s *slab) pool { return &bins{blocks: s} },
		func(t *rapid.T, got *block, want []*block) {
			require.Equal(t, want[0].size, got.size, "a smallest that fits")
			require.Contains(t, want, got)
		})
}

func TestTree(t *testing.T) {
	sizes := rapid.Map(rapid.IntRange(1, 20), func(mib int) Bytes { return Bytes(mib) * MiB })
	checkPool(t, sizes, func(s *slab) pool { return &tree{blocks: s} },
		func(t *rapid.T, got *block, want []*block) {
			require.Equal(t, want[0], got, "the smallest that fits, and the lowest of those")
		})
}

// TestTreeStaysShallow adds blocks in order of size, the worst for a tree
// without balance.
func TestTreeStaysShallow(t *testing.T) {
	const count = 1 << 15
	blocks := new(slab)
	p := tree{blocks: blocks}
	for range count {
		i, b := blocks.get()
		*b = block{ptr: Ptr(i), size: Bytes(i)}
		p.add(i)
	}
	var depth func(id) int
	depth = func(i id) int {
		if i == none {
			return 0
		}
		return 1 + max(depth(blocks.at(i).left), depth(blocks.at(i).right))
	}
	require.Less(t, depth(p.root), 3*15, "random treaps of this size are near 35 deep")
}

func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := new(slab)
		live := newTable(blocks)
		live.slots, live.shift = make([]slot, 4), 30 // small, so that chains wrap around and it grows
		model := make(map[Ptr]id)
		addresses := rapid.Uint64Range(1, 40)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := Ptr(addresses.Draw(t, "p"))
				if model[p] != none {
					t.Skip()
				}
				i, b := blocks.get()
				b.ptr = p
				live.add(i, p)
				model[p] = i
			},
			"remove": func(t *rapid.T) {
				p := Ptr(addresses.Draw(t, "p"))
				require.Equal(t, model[p], live.remove(p))
				delete(model, p)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model), live.used)
				found := make(map[Ptr]id)
				for _, s := range live.slots {
					if s.block != none {
						found[blocks.at(s.block).ptr] = s.block
					}
				}
				require.Equal(t, model, found)
			},
		})
		for _, p := range slices.Sorted(maps.Keys(model)) {
			require.Equal(t, model[p], live.remove(p))
		}
	})
}

func TestSlabReusesRecords(t *testing.T) {
	var s slab
	seen := make(map[id]bool)
	for range 3 * blocksPerChunk {
		i, _ := s.get()
		require.NotEqual(t, none, i)
		require.False(t, seen[i])
		seen[i] = true
	}
	for i := range seen {
		s.put(i)
	}
	require.Zero(t, s.used)
	chunks := len(s.chunks)
	for range 3 * blocksPerChunk {
		i, _ := s.get()
		require.True(t, seen[i])
	}
	require.Len(t, s.chunks, chunks)
}
