package symbols

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestCallTree: each sequence has one node, from which it can be read again, whatever else is in the tree.
func TestCallTree(t *testing.T) {
	var tree callTree[uint64]
	assert.Zero(t, tree.ofStack([]uint64{1}))
	random := rand.New(rand.NewPCG(1, 2))
	nodes := make(map[string]uint32)
	name := func(stack []uint64) string {
		text := make([]byte, len(stack))
		for i, v := range stack {
			text[i] = 'a' + byte(v)
		}
		return string(text)
	}
	for range 20_000 {
		stack := make([]uint64, 1+random.IntN(12))
		for i := range stack {
			stack[i] = uint64(random.IntN(4)) // 0 is a value as any other
		}
		before, known := nodes[name(stack)]
		if known {
			require.Equal(t, before, tree.ofStack(stack))
		}
		n := tree.addStack(stack)
		require.NotZero(t, n)
		if known {
			require.Equal(t, before, n)
		}
		nodes[name(stack)] = n
		require.Equal(t, stack, slices.Collect(tree.fromEnd(n)))
		require.Equal(t, len(stack), tree.length(n))
	}
	seen := make(map[uint32]string)
	for stack, n := range nodes {
		assert.Empty(t, seen[n], "%s and %s have one node", seen[n], stack)
		seen[n] = stack
	}
}

// TestStackTable: a stack that is resolved to the same frames, from whatever addresses, has one ID, and stacks are ordered as
// their frames are.
func TestStackTable(t *testing.T) {
	table := StackTable{max: 1 << 10}
	random := rand.New(rand.NewPCG(3, 4))
	byName := make(map[string]tables.StackID)
	var all []mem.Stack
	var ids []tables.StackID
	for i := range 500 {
		stack := make(mem.Stack, random.IntN(5))
		for j := range stack {
			stack[j] = mem.Frame{Function: string(rune('a' + random.IntN(2))), File: "main.c", Line: random.IntN(2)}
		}
		addresses := []uint64{uint64(i) + 1, 7}
		id := table.add(addresses, func() mem.Stack { return stack })
		assert.Equal(t, id, table.add(addresses, func() mem.Stack { panic("the addresses are known") }))
		if before, known := byName[stack.String()]; known {
			assert.Equal(t, before, id)
			continue
		}
		byName[stack.String()] = id
		all, ids = append(all, stack), append(ids, id)
	}
	for i, s := range all {
		assert.True(t, slices.Equal(s, table.Stack(ids[i])), "%v", s)
		assert.Equal(t, callSite(s), table.Site(ids[i]))
		for j, other := range all {
			assert.Equal(t, slices.CompareFunc(s, other, tables.CompareFrames), table.Compare(ids[i], ids[j]))
		}
	}
	table.forget()
	assert.Equal(t, ids[3], table.add([]uint64{99}, func() mem.Stack { return all[3] }), "a stack keeps its ID after its code has moved")
}

func TestStackTableIsFull(t *testing.T) {
	table := StackTable{max: 2}
	add := func(n uint64) tables.StackID {
		return table.add([]uint64{n}, func() mem.Stack { return mem.Stack{{Function: string(rune('a' + n))}} })
	}
	first, second, third := add(1), add(2), add(3)
	assert.Equal(t, third, add(4))
	assert.Equal(t, mem.Stack{{Function: "(call stack table full)"}}, table.Stack(third))
	assert.Equal(t, first, add(1))
	assert.Equal(t, second, add(2))
}
