package callstack_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// probe compares what a table captures with what runtime.Callers says at the same place. Any goroutine may take; the test
// checks when all have.
type probe struct {
	stacks *callstack.Table
	depth  int
}

// sight is what a probe saw at one place.
type sight struct {
	ids  []callstack.ID // of captures in a row: the first may learn the stack, the others should know it
	want []uintptr      // what runtime.Callers gives
	keys int            // keys that the table learned
}

func newProbe() *probe {
	return &probe{stacks: callstack.NewTable(callstack.Config{}), depth: callstack.DefaultDepth}
}

// take sees the stack of its caller.
//
//go:noinline
func (p *probe) take() sight {
	s := sight{want: make([]uintptr, p.depth)}
	before := p.stacks.Keys()
	for range 3 {
		s.ids = append(s.ids, p.stacks.Capture(1))
	}
	s.keys = p.stacks.Keys() - before
	s.want = s.want[:runtime.Callers(2, s.want)]
	return s
}

func (p *probe) check(t testing.TB, s sight) {
	t.Helper()
	require.NotEmpty(t, s.want)
	require.Len(t, s.ids, 3, "the probe was not reached")
	assert.Equal(t, s.ids[0], s.ids[1])
	assert.Equal(t, s.ids[0], s.ids[2])
	assert.Equal(t, s.ids[0], p.stacks.Intern(s.want))
	if got := p.stacks.PCs(s.ids[0]); !slices.Equal(s.want, got) {
		assert.Equal(t, symbolised(s.want), frames(p.stacks, s.ids[0]))
		assert.Equal(t, s.want, got)
	}
}

func frames(stacks *callstack.Table, id callstack.ID) []callstack.Frame {
	return slices.Collect(stacks.Frames(id))
}

func symbolised(pcs []uintptr) (all []callstack.Frame) {
	frames := runtime.CallersFrames(pcs)
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		all = append(all, callstack.Frame{Function: f.Function, File: f.File, Line: f.Line})
	}
	return all
}
