package replay

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// emptying is a run of events in which the cache gives segments back.
type emptying struct {
	under bool
	at    int       // its op
	stack mem.Stack // stack that all its events share; nil if they have none or different ones
}

// empty enters that the cache gave a segment back.
func (c *compiler) empty(e *snapshot.Event) {
	if !c.emptying.under {
		c.emptying = emptying{under: true, at: len(c.ops), stack: e.Stack}
		do := opEmpty
		if c.retrying {
			do = opRetry
		}
		c.ops = append(c.ops, op{do: do, event: c.seq})
		return
	}
	if !slices.Equal(c.emptying.stack, e.Stack) {
		c.emptying.stack = nil
	}
}

// retry looks at the event after a run. The program empties its cache at a line of its own. A
// request that the driver refused does it too, before it asks the driver again: a tracker's history
// says so, and in one of PyTorch its segments then come and go at one call stack. Where a history has
// neither, this is unclear, and a replay takes it that the program did it.
func (c *compiler) retry(e *snapshot.Event) {
	run := c.emptying
	if c.tells {
		c.told(e)
		return
	}
	switch {
	case e.Action == mem.SegmentFreed:
		return
	case !run.under:
		c.unclear = c.unclear || e.Action == mem.OutOfMemory // there may have been nothing to give back
	case e.Action != mem.SegmentAllocated && e.Action != mem.OutOfMemory:
	case len(run.stack) == 0 || len(e.Stack) == 0:
		c.unclear = true
	case slices.Equal(run.stack, e.Stack):
		c.recorded.Retries++
		c.ops[run.at].do = opRetry
	}
	c.emptying = emptying{}
}

// told follows the retries of a history that has them. One ends with the segment that the driver
// gives at last, or with an error.
func (c *compiler) told(e *snapshot.Event) {
	switch e.Action {
	case mem.SegmentFreed:
		return
	case mem.Retried:
		c.recorded.Retries++
		c.retrying = true
	case mem.SegmentAllocated, mem.OutOfMemory:
		c.retrying = false
	}
	c.emptying = emptying{}
}
