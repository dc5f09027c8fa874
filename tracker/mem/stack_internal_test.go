package mem

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
