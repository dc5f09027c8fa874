package replay

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// program is the sequence of requests that a history makes to an allocator.
type program struct {
	dump     *snapshot.Dump
	first    uint64              // the number of its first event
	start    *snapshot.Snapshot  // the state before the first event
	buffers  []buffer            // those that were live at the start come first, oldest first
	begun    int                 // how many those are
	at       map[alloc.Ptr]int32 // those by address
	ops      []op
	arenas   []arena
	recorded Levels
	events   int64
	gap      *gap
}

// arena is memory of one stream or private pool, which serves no other. It has its own cache.
type arena struct {
	stream  alloc.Stream
	private string // pool: see alloc.Segment
}

// buffer is one of the program's.
type buffer struct {
	requested alloc.Bytes
	allocated alloc.Bytes // as recorded
	ptr       alloc.Ptr   // as recorded
	arena     uint16
	foreign   bool // registered: its memory is the device's and not the allocator's
	torn      bool // its allocation or its free is not in the history
	freed     bool
}

// op is a step of a program.
type op struct {
	do     action
	buffer int32  // for ops about a buffer
	event  uint32 // index from the first event
	bytes  alloc.Bytes
	ptr    alloc.Ptr // for opDriver
}

type action uint8

const (
	opAlloc action = iota + 1
	opFree
	opGive   // a free while work on another stream used the memory
	opReuse  // the work is done, and the memory can be used again
	opEmpty  // the program empties the cache
	opRetry  // a request that the driver refused emptied it when it was recorded
	opTry    // a request that failed when it was recorded
	opDriver // the driver gave a segment at an address: the next request's
	opGave   // the cache gave memory back to the driver
)

// lowest returns the peaks of the buffers whose whole life is known: what the program needed
// at least.
func (p *program) lowest() (l Levels) {
	for i := range p.begun {
		p.count(&l, int32(i), 1)
	}
	l.peak()
	for _, o := range p.ops {
		switch o.do {
		case opAlloc:
			p.count(&l, o.buffer, 1)
			l.peak()
		case opFree, opGive:
			p.count(&l, o.buffer, -1)
		}
	}
	return l
}

func (p *program) count(l *Levels, i int32, sign alloc.Bytes) {
	if b := &p.buffers[i]; !b.torn {
		l.add(sign*b.requested, sign*b.allocated, b.foreign)
	}
}

// foreignPeak is the most that registered buffers hold.
func (p *program) foreignPeak() (peak alloc.Bytes) {
	level := alloc.Bytes(0)
	count := func(i int32, sign alloc.Bytes) {
		if b := &p.buffers[i]; b.foreign {
			level += sign * b.allocated
			peak = max(peak, level)
		}
	}
	for i := range p.begun {
		count(int32(i), 1)
	}
	for _, o := range p.ops {
		switch o.do {
		case opAlloc:
			count(o.buffer, 1)
		case opFree:
			count(o.buffer, -1)
		}
	}
	return peak
}
