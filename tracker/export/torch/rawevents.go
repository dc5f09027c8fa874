package torch

import (
	"fmt"
	"iter"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
)

// rawEvent is one entry of a device's trace.
type rawEvent struct {
	action   string
	addr     int64
	size     int64 // bytes
	free     int64 // free bytes of the device at an oom; -1 if unknown
	stream   int64
	micros   int64 // microseconds since 1970; 0 if unknown, as before PyTorch 2.1
	stack    *callStack
	category string // category of PyTorch's memory profiler; "" if none
	compile  string // the function of torch.compile that it belongs to; "" if there is none
	metadata plain.Value
	pool     poolID
	host     bool // in host memory
}

// rawAnnotation is the beginning or the end of a named piece of the program.
type rawAnnotation struct {
	begins bool
	name   string
	device int
	micros int64
}

// events yields what happened on a device, oldest first.
func (s *raw) events(device int) iter.Seq2[rawEvent, error] {
	var list plain.Value
	if device < len(s.traces) {
		list = s.traces[device]
	}
	if device == s.host {
		return merged(s.eventsOf(list, "device_traces"), s.hostEvents())
	}
	return s.eventsOf(list, "device_traces")
}

func (s *raw) eventsOf(list plain.Value, name string) iter.Seq2[rawEvent, error] {
	return func(yield func(rawEvent, error) bool) {
		for v, err := range s.dicts(list, name) {
			var e rawEvent
			if err == nil {
				e, err = s.event(v)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// eventsIn returns how many events a device has.
func (s *raw) eventsIn(device int) int {
	n := 0
	if device < len(s.traces) {
		n = len(s.List(s.traces[device]))
	}
	if device == s.host {
		for _, list := range s.hostTrace {
			n += len(s.List(list))
		}
	}
	return s.atMost(n)
}

func (s *raw) event(v plain.Value) (e rawEvent, err error) {
	e.action = s.text(v, s.key.action)
	e.addr = s.integer(v, s.key.addr)
	e.size = max(0, s.integer(v, s.key.size))
	if e.action != "oom" { // which may have asked for anything
		if err := s.amount(e.size, "size"); err != nil {
			return e, fmt.Errorf("event %s: %w", e.action, err)
		}
	}
	e.stream = s.integer(v, s.key.stream)
	e.micros = s.integer(v, s.key.time)
	e.category = s.text(v, s.key.category)
	if e.compile = s.text(v, s.key.compile); e.compile == "N/A" { // the value outside torch.compile
		e.compile = ""
	}
	e.pool = s.poolAt(v)
	e.metadata, _ = s.Get(v, s.key.metadata)
	e.free = -1
	if free, ok := s.integerOK(v, s.key.free); ok && free >= 0 {
		e.free = free
	}
	e.stack, err = s.stackAt(v, s.key.frames)
	return e, err
}

// hostEvents yields the events of the host's memory that are about buffers, oldest first.
func (s *raw) hostEvents() iter.Seq2[rawEvent, error] {
	return func(yield func(rawEvent, error) bool) {
		for _, list := range s.hostTrace {
			for e, err := range s.eventsOf(list, "host_traces") {
				switch e.action {
				case "alloc", "free", freeRequested, "free_completed":
				default:
					if err == nil {
						continue
					}
				}
				e.host = true
				if !yield(e, err) || err != nil {
					return
				}
			}
		}
	}
}

// merged yields the events of both sequences by time. If two have the same time, that of a comes
// first.
func merged(a, b iter.Seq2[rawEvent, error]) iter.Seq2[rawEvent, error] {
	return func(yield func(rawEvent, error) bool) {
		next, stop := iter.Pull2(b)
		defer stop()
		event, err, more := next()
		for e, failed := range a {
			for more && (err != nil || event.micros < e.micros) {
				if !yield(event, err) || err != nil {
					return
				}
				event, err, more = next()
			}
			if !yield(e, failed) || failed != nil {
				return
			}
		}
		for more {
			if !yield(event, err) || err != nil {
				return
			}
			event, err, more = next()
		}
	}
}

// annotated yields the annotations in the file's order.
func (s *raw) annotated() iter.Seq2[rawAnnotation, error] {
	return func(yield func(rawAnnotation, error) bool) {
		for v, err := range s.dicts(s.annotations, "external_annotations") {
			a := rawAnnotation{
				begins: s.text(v, s.key.stage) == "START", name: s.text(v, s.key.name),
				device: int(s.integer(v, s.key.device)), micros: s.integer(v, s.key.time),
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// rawSegment is memory that the allocator holds from the driver.
type rawSegment struct {
	device      int
	address     int64
	total       int64 // in bytes, as are the next fields
	stream      int64
	kind        string // "small", "large"
	pool        poolID
	expandable  bool
	stack       *callStack
	blocks      plain.Value
	description string // for error messages
}

// rawBlock is a piece of a segment.
type rawBlock struct {
	address   int64
	size      int64 // bytes
	requested int64 // bytes; size where the file has none
	state     blockState
	stack     *callStack
	value     plain.Value // the dict
}

type blockState uint8

const (
	inactive    blockState = iota // ready for reuse
	allocated                     // in use
	pendingFree                   // freed, and still in use by another stream
)

// segments yields the segments at the end of the history, or why one cannot be read.
func (s *raw) segments() iter.Seq2[rawSegment, error] {
	return func(yield func(rawSegment, error) bool) {
		i := 0
		for v, err := range s.dicts(s.segmentList, "segments") {
			var g rawSegment
			if err == nil {
				if g, err = s.segment(v); err != nil {
					err = fmt.Errorf("segment %d: %w", i, err)
				}
			}
			g.description = fmt.Sprintf("segment %d", i)
			if !yield(g, err) || err != nil {
				return
			}
			i++
		}
	}
}

func (s *raw) segment(v plain.Value) (g rawSegment, err error) {
	device, err := s.need(v, s.key.device, "device")
	if err != nil {
		return g, err
	}
	if device < 0 || device >= maxDevices {
		return g, fmt.Errorf("device is %d, want 0 to %d", device, maxDevices-1)
	}
	g.device = int(device)
	if g.address, err = s.need(v, s.key.address, "address"); err != nil {
		return g, err
	}
	g.blocks, _ = s.Get(v, s.key.blocks)
	if g.blocks.Kind() != plain.List {
		return g, fmt.Errorf("blocks is %v, want a list", g.blocks.Kind())
	}
	g.total = s.integer(v, s.key.total)
	g.stream = s.integer(v, s.key.stream)
	g.kind = s.text(v, s.key.kind)
	g.pool = s.poolAt(v)
	expandable, _ := s.Get(v, s.key.expandable)
	g.expandable, _ = expandable.Bool()
	g.stack, err = s.stackAt(v, s.key.frames)
	return g, err
}

// maxDevices bounds the number of a device.
const maxDevices = 1 << 10

// blocksOf yields the blocks of a segment, which tile it.
func (s *raw) blocksOf(g *rawSegment) iter.Seq2[rawBlock, error] {
	return func(yield func(rawBlock, error) bool) {
		at, i := g.address, 0
		for v, err := range s.dicts(g.blocks, "blocks") {
			var b rawBlock
			if err == nil {
				b, err = s.block(v, at)
			}
			if err != nil {
				err = fmt.Errorf("%s, block %d: %w", g.description, i, err)
			}
			if !yield(b, err) || err != nil {
				return
			}
			at += b.size // older files do not have the block's own address
			i++
		}
	}
}

func (s *raw) block(v plain.Value, at int64) (b rawBlock, err error) {
	b.address, b.value = at, v
	if b.size, err = s.need(v, s.key.size, "size"); err != nil {
		return b, err
	}
	if err = s.amount(b.size, "size"); err != nil {
		return b, err
	}
	if n := s.integer(v, s.key.requested); n < 0 {
		return b, fmt.Errorf("requested_size is %d", n)
	}
	switch s.text(v, s.key.state) {
	case "active_allocated":
		b.state = allocated
	case "active_pending_free", "active_awaiting_free":
		b.state = pendingFree
	}
	requested, known := s.integerOK(v, s.key.requested)
	frames, _ := s.Get(v, s.key.frames)
	if last := s.latest(v); frames.Kind() != plain.List && last.Kind() == plain.Dict {
		frames, _ = s.Get(last, s.key.frames)
		if !known {
			requested, known = s.integerOK(last, s.key.realSize)
		}
	}
	if !known || requested < 0 || requested > b.size {
		requested = b.size
	}
	b.requested = requested
	b.stack, err = s.stack(frames)
	return b, err
}

// latest returns the block's latest allocation. Snapshots before 2023 kept a list of them in
// "history".
func (s *raw) latest(block plain.Value) plain.Value {
	history, _ := s.Get(block, s.key.history)
	if list := s.List(history); len(list) > 0 {
		return list[0]
	}
	return plain.Value{}
}
