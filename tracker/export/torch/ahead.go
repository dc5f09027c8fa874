package torch

import (
	"fmt"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

// ahead rebuilds events while the file is still read, on another processor: most of a recording are the events of one device.
//
// What comes later in the file can matter to them: annotations are entries between them, host memory has events of its own,
// and in a file of Write events have more to say. Then nothing of this is used, and contents returns nil. The same if an
// event is wrong: reading it again, in order, finds the error.
type ahead struct {
	in      *source // what was known at the first batch
	begun   map[int]*rebuilder
	lists   map[int]plain.Value // the events that each rebuilder got
	counts  map[int]int
	current *beside
	useless bool
}

// beside is a goroutine that rebuilds the events of a device.
type beside struct {
	list plain.Value
	full chan []rawEvent // what the reader sends
	used chan []rawEvent // slices to use again
	err  chan error      // gets the result at the end
}

// batch takes a batch of the file. It is called by the reader.
func (a *ahead) batch(b plain.Batch) {
	if a.useless || b.Key != "device_traces" {
		return
	}
	if a.in == nil {
		a.begin(b)
	}
	if a.useless || !a.send(b) {
		a.drop()
	}
}

// drop forgets what was rebuilt, and no longer counts its memory.
func (a *ahead) drop() {
	a.finish()
	if a.in != nil {
		_ = a.in.take(-a.in.taken) // less never is too much
	}
	*a = ahead{useless: true}
}

// begin notes the parts of the file before its events.
func (a *ahead) begin(b plain.Batch) {
	s := emptyRaw(b.Data)
	s.beside = true
	_ = s.add(func(yield func(string, plain.Value) bool) { // what is missing may follow
		for i := 0; i+1 < len(b.Before); i += 2 {
			if !yield(b.Str(b.Before[i]), b.Before[i+1]) {
				return
			}
		}
	})
	a.in = newSource(s)
	a.in.readOrigin()
	a.begun, a.lists, a.counts = make(map[int]*rebuilder), make(map[int]plain.Value), make(map[int]int)
	a.useless = a.in.own
}

// maxSent bounds the events that are sent at once. Python's pickle adds a thousand to a list at once, but a hostile file adds
// millions, of a byte or two each.
const maxSent = 1024

// send sends events to the goroutine that rebuilds those of their device. It reports whether they can be rebuilt.
func (a *ahead) send(b plain.Batch) bool {
	if a.current == nil || a.current.list != b.List {
		if !a.finish() || a.begun[b.Index] != nil || b.Index >= maxDevices || !a.start(b) {
			return false
		}
	}
	for values := range slices.Chunk(b.Values, maxSent) {
		events := (<-a.current.used)[:0]
		for _, v := range values {
			if v.Kind() != plain.Dict || a.in.visit() != nil {
				return false
			}
			e, err := a.in.raw.event(v)
			if err != nil {
				return false
			}
			events = append(events, e)
		}
		a.counts[b.Index] += len(events)
		a.current.full <- events
		if a.count() != nil {
			return false
		}
	}
	return true
}

// count counts the memory that was taken beside the reader.
func (a *ahead) count() error { return a.in.take(a.in.used.Swap(0)) }

// start starts the goroutine of a device.
func (a *ahead) start(b plain.Batch) bool {
	r := a.in.newRebuilder(b.Index)
	if a.in.segmentList.Kind() == plain.List { // they come before the events, and number stacks and streams first
		devices, err := a.in.devices()
		if err != nil || r.readSegments(devices[b.Index]) != nil {
			return false
		}
	}
	r.begin(0)
	a.begun[b.Index], a.lists[b.Index] = r, b.List
	const waiting = 4 // slices
	c := &beside{list: b.List, full: make(chan []rawEvent, waiting), used: make(chan []rawEvent, waiting), err: make(chan error, 1)}
	for range waiting {
		c.used <- nil
	}
	a.current = c
	go func() { c.err <- c.rebuild(r) }()
	return true
}

// rebuild takes events until there are no more, also after an error: the reader waits for its slices.
func (c *beside) rebuild(r *rebuilder) (err error) {
	for events := range c.full {
		if err == nil {
			err = guard(func() error { return r.nextOf(events) })
		}
		c.used <- events
	}
	if err == nil {
		err = guard(r.flush)
	}
	return err
}

func (r *rebuilder) nextOf(events []rawEvent) error {
	for i := range events {
		if err := r.next(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

// guard turns a panic into an error: in a goroutine of its own it would end the program. Then the events are read again in
// order, and it happens where the caller of Read can recover from it.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// finish waits for the goroutine of the current device. It reports whether its events are right.
func (a *ahead) finish() bool {
	c := a.current
	if c == nil {
		return true
	}
	a.current = nil
	close(c.full)
	return <-c.err == nil
}

// end is called when the reader is done. complete says that the file was read, and no event of it changed after it was sent.
func (a *ahead) end(complete bool) {
	if !a.finish() || !complete {
		a.drop()
	}
	if a.in != nil {
		a.in.beside = false
	}
}

// contents returns what is in the file, or nil if it must be read in order.
func (a *ahead) contents(top plain.Value) *contents {
	if a.in == nil {
		return nil
	}
	if a.count() == nil && top.Kind() == plain.Dict {
		if c := a.complete(a.in.Each(top)); c != nil {
			return c
		}
	}
	a.drop()
	return nil
}

func (a *ahead) complete(parts iter.Seq2[string, plain.Value]) *contents {
	in := a.in
	numbered := in.segmentList
	if in.add(parts) != nil || numbered.Kind() == plain.List && numbered != in.segmentList {
		return nil
	}
	in.readOrigin()
	if in.own || in.Len(in.hostSegments)+len(in.hostTrace) > 0 {
		return nil
	}
	for device, list := range in.traces {
		if n := in.Len(list); n > 0 && (a.lists[device] != list || a.counts[device] != n) {
			return nil
		}
	}
	for device, r := range a.begun {
		if notes, err := r.notes(); err != nil || len(notes) > 0 || device >= len(in.traces) {
			return nil
		}
	}
	c, err := in.contents(a.begun)
	if err != nil { // in order, the first error may be another
		return nil
	}
	return c
}
