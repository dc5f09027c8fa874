package snapshot

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// calls is a path through these functions, each on a line of its own.
func calls(functions ...string) (p Path) {
	for i, f := range functions {
		p = append(p, Frame{Function: f, File: "f.go", Line: 10 * (i + 1)})
	}
	return p
}

func TestPathAsText(t *testing.T) {
	for want, p := range map[string]Path{
		"unknown": nil,
		"main.decode <- handle <- (*server).ServeHTTP":      calls("main.decode", "main.handle", "main.(*server).ServeHTTP"),
		"main.f <- http.HandlerFunc.ServeHTTP <- main.main": calls("main.f", "net/http.HandlerFunc.ServeHTTP", "main.main"),
		"forward <- forward <- train":                       calls("forward", "forward", "train"), // Python's
		"yaml.v3.Load <- load":                              calls("gopkg.in/yaml%2ev3.Load", "gopkg.in/yaml%2ev3.load"),
		"a.b <- c <- d <- e <- f <- g <- h <- i <- 2 more":  calls("a.b", "a.c", "a.d", "a.e", "a.f", "a.g", "a.h", "a.i", "a.j", "a.k"),
	} {
		assert.Equal(t, want, p.String())
	}
}

func TestPathLeavesLibrariesOut(t *testing.T) {
	stack := Stack(calls("github.com/gpumemtrack/gpumemtrack/tracker.Make", "example.com/tensor.New", "main.f",
		"github.com/gpumemtrack/gpumemtrack/tracker.(*MemTracker).Do", "main.main", "runtime.main", "runtime.goexit"))
	assert.Equal(t, "tensor.New <- main.f <- main", stack.Path().String())
	assert.Equal(t, "tracker.Make", stack[:1].Path().String(), "better than nothing")
	assert.Equal(t, "main.f <- main", stack.Path("example.com/tensor").String())
	assert.Empty(t, Stack(nil).Path())
}

func TestCallers(t *testing.T) {
	paths := map[StackID]Path{
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
	line := map[StackID]stackCount{
		1: {live: 5, total: 40}, 2: {live: 1, total: 10}, 3: {total: 10},
		4: {total: 20}, 5: {total: 10}, 6: {total: 7}, 7: {total: 3},
	}
	c := newCallers([]held{{stack: 1}, {stack: 2}, {stack: 1}}, line, func(id StackID) Path { return paths[id] })
	assert.Equal(t, "\tpath: main.decode <- handle\n"+
		"\talso: main.decode <- warm, 30.0 %\n"+
		"\talso: main.decode <- test, 7.0 %\n"+
		"\talso: main.decode, 3.0 %", c.String())
	assert.Equal(t, []int{10, 0}, []int{c.Path[0].Line, c.Path[1].Line}, "handle calls decode on two lines")
	assert.Equal(t, []int{10, 0}, []int{c.Others[0].Path[0].Line, c.Others[0].Path[1].Line})
	assert.Equal(t, 20, paths[1][1].Line, "paths are shared and not written")

	alone := newCallers([]held{{stack: 1}}, line, func(id StackID) Path { return paths[id] })
	assert.Equal(t, "main.decode <- handle <- serve <- main", alone.Path.String())
	assert.Len(t, alone.Others, maxOthers)
	assert.Equal(t, "\tpath: unknown", newCallers(nil, nil, nil).String())
}
