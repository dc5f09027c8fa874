package callstack_test

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// A table agrees with a map from the words of a stack to its ID, whatever the stacks have in common.
func TestInternAgainstModel(t *testing.T) {
	word := rapid.OneOf(rapid.UintptrRange(0, 3), rapid.Uintptr())
	stack := rapid.SliceOfN(word, 0, 6)
	rapid.Check(t, func(t *rapid.T) {
		depth, limit := rapid.IntRange(1, 6).Draw(t, "depth"), rapid.IntRange(1, 80).Draw(t, "max")
		table := callstack.NewTable(callstack.Config{Depth: depth, Max: limit})
		model := make(map[string]callstack.ID)
		for _, pcs := range rapid.SliceOfN(stack, 0, 200).Draw(t, "stacks") {
			kept := pcs[:min(len(pcs), depth)]
			want, known := model[fmt.Sprint(kept)]
			switch {
			case len(kept) == 0:
				want = 0
			case !known && len(model) == limit:
				want, kept = callstack.Overflow, nil
			case !known:
				want = callstack.ID(len(model) + 1)
				model[fmt.Sprint(kept)] = want
			}
			got := table.Intern(pcs)
			require.Equal(t, want, got)
			require.True(t, slices.Equal(kept, table.PCs(got)))
			require.Equal(t, len(model), table.Len())
		}
	})
}

func TestFullTable(t *testing.T) {
	const limit = 3
	stacks := callstack.NewTable(callstack.Config{Max: limit})
	for range 2 {
		var ids []callstack.ID
		for n := range 6 {
			recurse(n, func() { ids = append(ids, stacks.Capture(0)) })
		}
		assert.Equal(t, []callstack.ID{1, 2, 3, callstack.Overflow, callstack.Overflow, callstack.Overflow}, ids)
	}
	assert.Equal(t, limit, stacks.Len())
	assert.LessOrEqual(t, stacks.Keys(), limit)
	assert.Empty(t, stacks.PCs(callstack.Overflow))
	assert.Equal(t, []callstack.Frame{{Function: "(call stack table full)"}}, frames(stacks, callstack.Overflow))
}

// Beside eight whole stacks there is room for two that were cut short.
func TestFullTableCutsStacksShort(t *testing.T) {
	var stacks *callstack.Table
	stacks = callstack.NewTable(callstack.Config{Max: 8, Short: func(pcs []uintptr) []uintptr {
		assert.Equal(t, callstack.ID(1), stacks.Intern(numbered(0)), "called under a lock, or of a stack that is kept")
		return pcs[:pcs[0]]
	}})
	for n := range 8 {
		require.Equal(t, callstack.ID(n+1), stacks.Intern(numbered(n)))
	}
	for range 2 {
		for _, test := range []struct {
			pcs  []uintptr
			want callstack.ID
		}{
			{numbered(7), 8},
			{[]uintptr{1, 2, 3}, 9},
			{[]uintptr{1, 7}, 9},
			{[]uintptr{1}, 9},
			{[]uintptr{0, 1}, callstack.Overflow},
			{[]uintptr{2, 3, 4}, 10},
			{[]uintptr{2, 3}, 10},
			{[]uintptr{2, 4}, callstack.Overflow},
		} {
			assert.Equal(t, test.want, stacks.Intern(test.pcs), "%v", test.pcs)
		}
	}
	assert.Equal(t, 10, stacks.Len())
	assert.Equal(t, []uintptr{2, 3}, stacks.PCs(10))
}

// The same call comes by many ways, and each by itself.
func TestShortStackTellsThatItIs(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{Max: 4, Short: func(pcs []uintptr) []uintptr { return pcs[:1] }})
	ids := make(map[callstack.ID]bool)
	for path := range uint32(16) {
		branch(4, path, func() { ids[stacks.Capture(0)] = true })
	}
	assert.Equal(t, map[callstack.ID]bool{1: true, 2: true, 3: true, 4: true, 5: true}, ids)
	short := frames(stacks, 5)
	assert.Equal(t, frames(stacks, 1)[0], short[0])
	assert.Equal(t, []callstack.Frame{{Function: "(call stack table full: other frames left out)"}}, short[1:])
	assert.LessOrEqual(t, stacks.Keys(), 4)
}

// Many ways to the same stack, here by how much of it is skipped, need many keys, which are bounded as stacks are.
func TestKeysAreBounded(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{Depth: 4, Max: 2})
	var ids []callstack.ID
	for skip := range 8 {
		recurse(20+skip, func() { ids = append(ids, stacks.Capture(skip+1)) })
	}
	for _, id := range ids[1:] {
		assert.Equal(t, ids[1], id)
	}
	assert.LessOrEqual(t, stacks.Keys(), 2)
}

func TestConfigDefaults(t *testing.T) {
	for name, test := range map[string]struct{ depth, want int }{
		"zero":     {0, callstack.DefaultDepth},
		"negative": {-1, callstack.DefaultDepth},
		"one":      {1, 1},
		"too deep": {callstack.MaxDepth + 1, callstack.MaxDepth},
	} {
		t.Run(name, func(t *testing.T) {
			stacks := callstack.NewTable(callstack.Config{Depth: test.depth, Max: -1})
			recurse(2*callstack.MaxDepth, func() {
				assert.Len(t, stacks.PCs(stacks.Capture(0)), test.want)
			})
		})
	}
}

func TestUnknownIDs(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	stacks.Capture(0)
	for _, id := range []callstack.ID{0, 2, callstack.Overflow - 1} {
		assert.Empty(t, stacks.PCs(id))
		assert.Empty(t, frames(stacks, id))
	}
}

func TestFramesAreThoseOfCallersFrames(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	inlined1(func() {
		pcs := make([]uintptr, callstack.DefaultDepth)
		pcs = pcs[:runtime.Callers(1, pcs)]
		for range 2 { // the second time from memory
			assert.Equal(t, symbolised(pcs), frames(stacks, stacks.Intern(pcs)))
		}
	})
}

func TestFramesStops(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	id := stacks.Capture(0)
	n := 0
	for range stacks.Frames(id) {
		n++
		break
	}
	assert.Equal(t, 1, n)
}

func TestFramesOfNoCode(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	assert.Empty(t, frames(stacks, stacks.Intern([]uintptr{1, 2, 3})))
}

func ExampleTable() {
	stacks := callstack.NewTable(callstack.Config{Depth: 2})
	var ids [3]callstack.ID
	for i := range ids {
		ids[i] = stacks.Capture(0)
	}
	fmt.Println(ids, stacks.Len())
	for f := range stacks.Frames(ids[0]) {
		fmt.Println(path.Base(f.Function))
	}
	// Output:
	// [1 1 1] 1
	// callstack_test.ExampleTable
	// testing.runExample
}
