package tracker_test

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestSiteIsTheInnermostFrameOfTheUser(t *testing.T) {
	stack := mem.Stack{
		{Function: "github.com/gpumemtrack/gpumemtrack/tracker.(*MemTracker).Alloc"},
		{Function: "example.com/tensor.New"},
		{Function: "example.com/tensorflow.load"},
		{Function: "main.main"},
	}
	assert.Equal(t, "example.com/tensor.New", stack.CallSite().Function)
	assert.Equal(t, "example.com/tensorflow.load", stack.CallSite("example.com/tensor").Function)
	assert.Equal(t, "main.main", stack.CallSite("example.com", "main").Function, "all are libraries")
	started := append(stack[:2:2], mem.Frame{Function: "runtime.goexit"})
	assert.Equal(t, "example.com/tensor.New", started.CallSite("example.com/tensor").Function, "the runtime is nobody's code")
	versioned := mem.Stack{{Function: "example.com/tensor%2ev2.New"}, {Function: "main.main"}}
	assert.Equal(t, "main.main", versioned.CallSite("example.com/tensor.v2").Function)
	assert.Zero(t, mem.Stack(nil).CallSite())
}

// byPath calls f below n frames that stand at one of two lines each, as path says.
//
//go:noinline
func byPath(n, path int, f func()) {
	switch {
	case n == 0:
		f()
	case path%2 == 0:
		byPath(n-1, path/2, f)
	default:
		byPath(n-1, path/2, f)
	}
}

func TestNewLinesWhenStacksAreFull(t *testing.T) {
	tr, _ := open(t, tracker.Config{MaxStacks: 16})
	for path := range 64 {
		byPath(6, path, func() { take(t, tr, tracker.Temporary, 8) })
	}
	_, file, line, _ := runtime.Caller(0)
	_, err := tr.Alloc(alloc.Shape{8}, alloc.Uint8, tracker.Parameter)
	require.NoError(t, err)

	var stacks, cut int
	for site := range tr.Snapshot().CallSites() {
		last := site.Stack[len(site.Stack)-1]
		if strings.HasPrefix(last.Function, "(call stack table full: ") {
			cut++
			assert.Equal(t, site.CallSite, site.Stack[len(site.Stack)-2])
		}
		if site.Kind == tracker.Parameter {
			assert.Equal(t, fmt.Sprintf("%s:%d", file, line+1), fmt.Sprintf("%s:%d", site.CallSite.File, site.CallSite.Line))
		}
		assert.Equal(t, site.CallSite, site.Stack.CallSite())
		stacks++
	}
	assert.Equal(t, 2, cut, "the line of all the paths, and the new one")
	assert.Equal(t, 16+cut, stacks)
}

// TestDepthsThatNoStackHas are refused: a stack is not cut shorter than was asked for.
func TestDepthsThatNoStackHas(t *testing.T) {
	for depth, valid := range map[int]bool{-1: false, 0: true, 1: true, 128: true, 129: false, math.MaxInt: false} {
		tr, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Report: io.Discard, StackDepth: depth})
		if valid {
			require.NoError(t, err)
			require.NoError(t, tr.Close())
			continue
		}
		assert.EqualError(t, err, fmt.Sprintf("new tracker: Config.StackDepth is %d: want 1 to 128 frames, or 0 for 32", depth))
	}
}
