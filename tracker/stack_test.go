package tracker_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestSiteIsTheInnermostFrameOfTheUser(t *testing.T) {
	stack := tracker.Stack{
		{Function: "github.com/gpumemtrack/gpumemtrack/tracker.(*MemTracker).Alloc"},
		{Function: "example.com/tensor.New"},
		{Function: "example.com/tensorflow.load"},
		{Function: "main.main"},
	}
	assert.Equal(t, "example.com/tensor.New", stack.Site().Function)
	assert.Equal(t, "example.com/tensorflow.load", stack.Site("example.com/tensor").Function)
	assert.Equal(t, "main.main", stack.Site("example.com", "main").Function, "all are libraries")
	started := append(stack[:2:2], tracker.Frame{Function: "runtime.goexit"})
	assert.Equal(t, "example.com/tensor.New", started.Site("example.com/tensor").Function, "the runtime is nobody's code")
	versioned := tracker.Stack{{Function: "example.com/tensor%2ev2.New"}, {Function: "main.main"}}
	assert.Equal(t, "main.main", versioned.Site("example.com/tensor.v2").Function)
	assert.True(t, tracker.Stack(nil).Site().IsZero())
}
