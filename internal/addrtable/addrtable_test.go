package addrtable

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// find returns the record of an address, and the search that has come to it.
func find(t *Table, of map[slab.ID]uint64, address uint64) (slab.ID, *Search) {
	s := t.Look(address)
	for id := s.Next(); id != 0; id = s.Next() {
		if of[id] == address {
			return id, &s
		}
	}
	return 0, &s
}

// TestTable compares a table with a map.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := New()
		model, of := make(map[uint64]slab.ID), make(map[slab.ID]uint64)
		last := slab.ID(0)
		// Few addresses come again and again, and many make pages split.
		addresses := rapid.Uint64Range(1, rapid.SampledFrom([]uint64{40, 5000}).Draw(t, "addresses"))
		add := func(p uint64) {
			if model[p] == 0 {
				last++
				model[p], of[last] = last, p
				table.Add(p, last)
			}
		}
		remove := func(t *rapid.T, p uint64) {
			id, search := find(&table, of, p)
			require.Equal(t, model[p], id)
			if id != 0 {
				table.Remove(search)
				delete(model, p)
				delete(of, id)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { add(addresses.Draw(t, "p")) },
			"add many": func(t *rapid.T) {
				for p := range 600 * addresses.Draw(t, "from") % 5000 {
					add(p + 1)
				}
			},
			"remove": func(t *rapid.T) { remove(t, addresses.Draw(t, "p")) },
			"": func(t *rapid.T) {
				require.Equal(t, model, all(&table, of))
			},
		})
		for _, p := range slices.Sorted(maps.Keys(model)) {
			remove(t, p)
		}
		require.Empty(t, all(&table, of))
	})
}

// TestEqualHashes: records whose hashes are the same are distinguished by the caller.
func TestEqualHashes(t *testing.T) {
	table, of := New(), make(map[slab.ID]uint64)
	for i := range uint64(1000) {
		const inverse = 0xf1de83e19937733d // of the hash's factor, modulo 2^64
		address := inverse * (7<<32 + i)   // so that its product begins with 7
		require.EqualValues(t, 7, hashOf(address))
		if i == pageSlots/4*3-1 {
			break // more of them no page has room for
		}
		table.Add(address, slab.ID(i+1))
		of[slab.ID(i+1)] = address
	}
	for id, address := range of {
		found, search := find(&table, of, address)
		require.Equal(t, id, found)
		table.Remove(search)
		found, _ = find(&table, of, address)
		require.Zero(t, found)
	}
	require.Empty(t, all(&table, of))
}

// all returns the records in the table's pages by their addresses.
func all(t *Table, of map[slab.ID]uint64) map[uint64]slab.ID {
	found := make(map[uint64]slab.ID)
	var last *page
	for _, p := range t.directory {
		if p == last {
			continue
		}
		last = p
		for _, s := range p.slots {
			if s.id != 0 {
				found[of[s.id]] = s.id
			}
		}
	}
	return found
}
