package cache

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// SegmentAction is what happened between a Cache and its driver.
type SegmentAction uint8

// The actions. Except for SegmentRetry, they have the names that PyTorch's snapshots
// use.
const (
	SegmentAlloc SegmentAction = iota + 1 // "segment_alloc": no block of it is handed out yet
	SegmentFree                           // "segment_free": the driver has it back
	SegmentRetry                          // "retry": out of memory; cached segments go back now
	SegmentOOM                            // "oom": still out of memory
	SegmentMap                            // "segment_map": an expandable segment grew by Size
	SegmentUnmap                          // "segment_unmap": the driver has a part of one back
)

// String returns the action's name.
func (a SegmentAction) String() string {
	names := [...]string{SegmentAlloc: "segment_alloc", SegmentFree: "segment_free", SegmentRetry: "retry", SegmentOOM: "oom",
		SegmentMap: "segment_map", SegmentUnmap: "segment_unmap"}
	if a == 0 || int(a) >= len(names) {
		return fmt.Sprintf("SegmentAction(%d)", uint8(a))
	}
	return names[a]
}

// SegmentEvent is an event of Config.OnSegment.
type SegmentEvent struct {
	Action SegmentAction
	Ptr    alloc.Ptr    // of the segment, or of the part; 0 for SegmentRetry and SegmentOOM
	Size   alloc.Bytes  // of the same, or the segment asked for; the request's for SegmentOOM
	Stream alloc.Stream // that the memory is for
}

// eventQueue holds the events that were not passed to OnSegment yet.
type eventQueue struct {
	atOnce  func(SegmentEvent) // called with the cache's lock held
	tell    func(SegmentEvent) // called with no lock held
	waiting []SegmentEvent
	telling bool // a goroutine is, and also reports events that follow
}

// add enters an event. The caller holds the cache's lock.
func (q *eventQueue) add(action SegmentAction, p alloc.Ptr, size alloc.Bytes, s alloc.Stream) {
	e := SegmentEvent{Action: action, Ptr: p, Size: size, Stream: s}
	if q.atOnce != nil {
		q.atOnce(e)
	}
	if q.tell != nil {
		q.waiting = append(q.waiting, e)
	}
}

// flush reports the waiting events, unless another goroutine does. The caller does not
// hold the cache's lock.
func (q *eventQueue) flush(lock *spinlock.Mutex) {
	if q.tell == nil {
		return
	}
	lock.Lock()
	defer lock.Unlock()
	if q.telling {
		return
	}
	q.telling = true
	defer func() { q.telling = false }()
	for len(q.waiting) > 0 {
		events := q.waiting
		q.waiting = nil
		q.tellAll(events, lock)
	}
}

// tellAll passes the events on. It releases the lock meanwhile.
func (q *eventQueue) tellAll(events []SegmentEvent, lock *spinlock.Mutex) {
	lock.Unlock()
	defer lock.Lock()
	for _, e := range events {
		q.tell(e)
	}
}
