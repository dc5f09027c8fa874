package sim

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// work is something that a program queues on a stream.
type work struct {
	Stream alloc.Stream
	Ptr    alloc.Ptr     // the memory that it uses
	Size   alloc.Bytes   // 0 if it uses none
	Time   time.Duration // duration by the device's clock; 0 or less means that it takes no time
}

// queued is work that is not done.
type queued struct {
	work
	fill  bool // with value, when it is done
	value byte
	done  time.Duration // when it is
	calls []uintptr
}

// streams is the device's clock and the queued work of its streams. It has a lock of its own, since a
// Cache reports blocks that it hands out while it holds the Cache's lock.
type streams struct {
	mu     sync.Mutex
	now    time.Duration
	ends   map[alloc.Stream]time.Duration // when all work on a stream is done
	work   []queued
	reused *reuseError
}

// add queues work, and returns it if it is done.
func (s *streams) add(q queued) (due []queued) {
	q.done = later(max(s.now, s.ends[q.Stream]), q.Time)
	s.ends[q.Stream] = q.done
	if q.done <= s.now {
		return []queued{q}
	}
	s.work = append(s.work, q)
	return nil
}

// later returns the time that is by after t, or the latest possible time if that would overflow.
func later(t, by time.Duration) time.Duration { return t + min(max(by, 0), math.MaxInt64-t) }

// advance moves the clock forward to a time, and returns the work that is done by then, in the
// order in which it ended.
func (s *streams) advance(to time.Duration) (due []queued) {
	if to <= s.now {
		return nil
	}
	s.now = to
	s.work = slices.DeleteFunc(s.work, func(q queued) bool {
		if q.done > to {
			return false
		}
		due = append(due, q)
		return true
	})
	slices.SortStableFunc(due, func(x, y queued) int { return cmp.Compare(x.done, y.done) })
	return due
}

// drain waits for all work, and returns it.
func (s *streams) drain() (due []queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.now
	for _, q := range s.work {
		last = max(last, q.done)
	}
	return s.advance(last)
}

// join makes a stream wait for others, and returns the time at which all of their work is done.
func (s *streams) join(own alloc.Stream, others []alloc.Stream) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range others {
		s.ends[own] = max(s.ends[own], s.ends[other])
	}
	return s.ends[own]
}

func (d *device) Queue(s alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) error {
	if err := d.call("Queue"); err != nil {
		return err
	}
	d.streams.mu.Lock()
	due := d.streams.add(queued{work: work{s, p, n, takes}, calls: callers()})
	d.streams.mu.Unlock()
	d.apply(due)
	return nil
}

// apply makes the changes to the memory of work that is done.
func (d *device) apply(due []queued) {
	if len(due) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory.write(due)
}

// Fill queues work that sets n bytes at p to a value. The errors are those of a copy.
func (d *device) Fill(p alloc.Ptr, n alloc.Bytes, value byte, s alloc.Stream) error {
	if n < 0 || alloc.Bytes(int(n)) != n {
		return fmt.Errorf("%w of %d bytes: negative, or too large for this platform's int", alloc.ErrSize, n)
	}
	defer d.begin()()
	if err := d.enter("Fill"); err != nil {
		return err
	}
	if err := d.inside(fmt.Sprintf("fill %v", n), p, int(n)); err != nil {
		return err
	}
	d.streams.mu.Lock()
	defer d.streams.mu.Unlock()
	d.memory.write(d.streams.add(queued{work: work{Stream: s, Ptr: p, Size: n}, fill: true, value: value, calls: callers()}))
	return nil
}

func (d *device) Advance(by time.Duration) (now time.Duration) {
	d.streams.mu.Lock()
	due := d.streams.advance(later(d.streams.now, by))
	now = d.streams.now
	d.streams.mu.Unlock()
	d.apply(due)
	return now
}

// RecordEvent marks the end of the work queued so far on a stream. The errors, also those of the
// event's methods, are alloc.ErrClosed and those of faults.
func (d *device) RecordEvent(s alloc.Stream) (capability.Event, error) {
	if err := d.call("Event"); err != nil {
		return nil, err
	}
	d.streams.mu.Lock()
	defer d.streams.mu.Unlock()
	return &event{d, d.streams.ends[s]}, nil
}

type event struct {
	dev *device
	at  time.Duration
}

func (e *event) Done() (bool, error) {
	if err := e.dev.call("Event"); err != nil {
		return false, err
	}
	return e.dev.Advance(0) >= e.at, nil
}

func (e *event) Wait() error {
	if err := e.dev.call("Event"); err != nil {
		return err
	}
	e.dev.streams.mu.Lock()
	due := e.dev.streams.advance(e.at)
	e.dev.streams.mu.Unlock()
	e.dev.apply(due)
	return nil
}

// reuseError says that a Cache handed out memory that queued work still used: the work
// and the new owner overwrite each other's data. A real GPU does not report it.
type reuseError struct {
	Device string // name and ordinal
	Ptr    alloc.Ptr
	Size   alloc.Bytes   // size of the block handed out
	Stream alloc.Stream  // the stream that it was handed out for
	Work   work          // the first queued that uses it, on another stream
	Left   time.Duration // that the work has still to run

	HandedOut string // the line that asked for the block: "main.step train.go:12"
	Queued    string // the line that queued the work
}

func (e *reuseError) Error() string {
	return fmt.Sprintf("%v at %v on %s was handed out for stream %#x (%s), while work on stream %#x uses %v at %v for another %v (%s): call RecordStream before Free",
		e.Size, e.Ptr, e.Device, uint64(e.Stream), e.HandedOut, uint64(e.Work.Stream), e.Work.Size, e.Work.Ptr, e.Left, e.Queued)
}

func (d *device) Err() error {
	d.streams.mu.Lock()
	defer d.streams.mu.Unlock()
	if d.streams.reused == nil {
		return nil
	}
	return d.streams.reused
}

// CheckReuse returns the check for a Cache, nil without Config.CheckReuse.
func (d *device) CheckReuse() func(alloc.Ptr, alloc.Bytes, alloc.Stream) {
	if !d.checkReuse {
		return nil
	}
	return d.handedOut
}

// handedOut checks a block. Work on the block's own stream runs before what its owner queues.
func (d *device) handedOut(p alloc.Ptr, n alloc.Bytes, on alloc.Stream) {
	d.handedOutBehind(p, n, on, 0)
}

// handedOutBehind is handedOut for a block whose owner's work runs after all work that ends by then.
func (d *device) handedOutBehind(p alloc.Ptr, n alloc.Bytes, on alloc.Stream, then time.Duration) {
	s := &d.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.work {
		if s.reused == nil && w.Stream != on && w.done > then && w.Ptr < p+alloc.Ptr(n) && p < w.Ptr+alloc.Ptr(w.Size) {
			s.reused = &reuseError{
				Device: d.String(), Ptr: p, Size: n, Stream: on, Work: w.work, Left: w.done - s.now,
				HandedOut: line(callers()), Queued: line(w.calls),
			}
		}
	}
}

func callers() []uintptr {
	calls := make([]uintptr, 32)
	return calls[:runtime.Callers(2, calls)]
}

// line returns the line of the user's code among calls: "main.step train.go:12".
func line(calls []uintptr) string {
	var all []runtime.Frame
	frames := runtime.CallersFrames(calls)
	for more := len(calls) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		all = append(all, f)
	}
	rule := callsite.Rule{Go: callsite.GoLibraries}
	i, _ := callsite.Find(len(all), func(i int) callsite.Rank { return rule.Rank(all[i].Function, all[i].File) })
	if i < 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s %s:%d", path.Base(all[i].Function), path.Base(all[i].File), all[i].Line)
}
