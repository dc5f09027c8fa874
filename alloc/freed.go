package alloc

import (
	"sync"
)

// pending is what a cache keeps of blocks that several streams use.
type pending struct {
	dev   EventDevice     // nil if the device has no events
	uses  map[id][]Stream // of allocated blocks: the streams that use them, except their own
	fresh []*freed        // blocks without all of their events
	count int             // pending blocks

	reusable func(Ptr, Bytes, Stream) // told of blocks that were pending; nil is nobody

	// asking is held while the device is asked, and is taken before mu. It guards
	// queues. The cache's lock guards the fields above.
	asking sync.Mutex
	queues []*streamMarks
}

// freed is a pending block.
type freed struct {
	block   id
	streams []Stream // those without an event yet
	events  int      // those that have not passed
}

// streamMarks holds the events on one stream, the oldest first: they pass in this order.
type streamMarks struct {
	stream Stream
	marks  []mark
}

type mark struct {
	event Event
	freed *freed
}
