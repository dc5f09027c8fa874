package cache

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// pending is what a cache keeps of blocks that several streams use.
type pending struct {
	dev   alloc.EventDevice     // nil if the device has no events
	uses  map[id][]alloc.Stream // of allocated blocks: the streams that use them, except their own
	fresh []*freed              // blocks without all of their events
	count int                   // pending blocks

	reusable func(alloc.Ptr, alloc.Bytes, alloc.Stream) // told of blocks that were pending; nil is nobody

	// asking is held while the device is asked, and is taken before mu. It guards
	// queues. The cache's lock guards the fields above.
	asking sync.Mutex
	queues []*streamMarks
}

// freed is a pending block.
type freed struct {
	block   id
	streams []alloc.Stream // those without an event yet
	events  int            // those that have not passed
}

// streamMarks holds the events on one stream, the oldest first: they pass in this order.
type streamMarks struct {
	stream alloc.Stream
	marks  []mark
}

type mark struct {
	event alloc.Event
	freed *freed
}
