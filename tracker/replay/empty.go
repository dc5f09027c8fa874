package replay

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// emptying is a run of events by which the cache gives segments back.
type emptying struct {
	under bool
	at    int            // its op
	stack snapshot.Stack // of all its events; nil if they have none, or several
}

// empty enters that the cache gave a segment back.
func (c *compiler) empty(e *snapshot.Event) {
	if !c.emptying.under {
		c.emptying = emptying{under: true, at: len(c.ops), stack: e.Stack}
		c.ops = append(c.ops, op{do: opEmpty, event: c.seq})
		return
	}
	if !slices.Equal(c.emptying.stack, e.Stack) {
		c.emptying.stack = nil
	}
}

// retry looks at the event after a run. The program empties its cache at a line of its own. A
// request that the driver refused does it too, before it asks the driver again: its segments
// then come and go at one call stack. Where a history has no call stacks of segments, this is
// unclear, and a replay takes it that the program did it.
func (c *compiler) retry(e *snapshot.Event) {
	run := c.emptying
	switch {
	case e.Action == snapshot.SegmentFreed:
		return
	case !run.under:
		c.unclear = c.unclear || e.Action == snapshot.OutOfMemory // there may have been nothing to give back
	case e.Action != snapshot.SegmentAllocated && e.Action != snapshot.OutOfMemory:
	case len(run.stack) == 0 || len(e.Stack) == 0:
		c.unclear = true
	case slices.Equal(run.stack, e.Stack):
		c.recorded.Retries++
		c.ops[run.at].do = opRetry
	}
	c.emptying = emptying{}
}
