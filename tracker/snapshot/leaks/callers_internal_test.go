package leaks

import (
	"maps"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/stretchr/testify/assert"
)

// calls is a path through these functions, each on a line of its own.
func calls(functions ...string) (p mem.Path) {
	for i, f := range functions {
		p = append(p, mem.Frame{Function: f, File: "f.go", Line: 10 * (i + 1)})
	}
	return p
}

func TestCallers(t *testing.T) {
	paths := map[tables.StackID]mem.Path{
		1: calls("main.decode", "main.handle", "main.serve", "main.main"),
		2: calls("main.decode", "main.handle", "main.batch", "main.main"),
		3: calls("main.decode", "main.handle", "main.other", "main.main"), // leaves after the common path
		4: calls("main.decode", "main.warm", "main.main"),
		5: calls("main.decode", "main.warm", "main.again", "main.main"),
		6: calls("main.decode", "main.test"),
		7: calls("main.decode"),
	}
	paths[2][1].Line = 99
	paths[5][1].Line = 99
	line := map[tables.StackID]stackCount{
		1: {live: 5, total: 40}, 2: {live: 1, total: 10}, 3: {total: 10},
		4: {total: 20}, 5: {total: 10}, 6: {total: 7}, 7: {total: 3},
	}
	c := newCallers([]tables.StackID{1, 2, 1}, maps.All(line), func(id tables.StackID) mem.Path { return paths[id] })
	assert.Equal(t, "\tpath: main.decode <- handle\n"+
		"\talso: main.decode <- warm, 30.0 %\n"+
		"\talso: main.decode <- test, 7.0 %\n"+
		"\talso: main.decode, 3.0 %", way(c.path, c.texts()))
	assert.Equal(t, []int{10, 0}, []int{c.path[0].Line, c.path[1].Line}, "handle calls decode on two lines")
	assert.Equal(t, []int{10, 0}, []int{c.others[0].path[0].Line, c.others[0].path[1].Line})
	assert.Equal(t, 20, paths[1][1].Line, "paths are shared and not written")

	alone := newCallers([]tables.StackID{1}, maps.All(line), func(id tables.StackID) mem.Path { return paths[id] })
	assert.Equal(t, "main.decode <- handle <- serve <- main", alone.path.String())
	assert.Len(t, alone.others, maxOthers)
	assert.Equal(t, "\tpath: unknown", way(newCallers(nil, maps.All(map[tables.StackID]stackCount(nil)), nil).path, nil))
}
