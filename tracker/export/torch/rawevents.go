package torch

import (
	"iter"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
)

// rawEvent is one entry of a device's trace.
type rawEvent struct {
	action   string
	addr     int64
	size     int64 // bytes
	free     int64 // bytes of the device, of an oom; -1 if not known
	stream   int64
	micros   int64 // since 1970; 0 if not known, as before PyTorch 2.1
	stack    *callStack
	category string // of PyTorch's memory profiler; "" if none
	compile  string // the compiled function that it belongs to; "" if none
	metadata plain.Value
	pool     poolID
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
	return func(yield func(rawEvent, error) bool) {
		if device >= len(s.traces) {
			return
		}
		for v, err := range s.dicts(s.traces[device], "device_traces") {
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
	if device >= len(s.traces) {
		return 0
	}
	return s.atMost(len(s.List(s.traces[device])))
}

func (s *raw) event(v plain.Value) (e rawEvent, err error) {
	e.action = s.text(v, s.key.action)
	e.addr = s.integer(v, s.key.addr)
	e.size = max(0, s.integer(v, s.key.size))
	e.stream = s.integer(v, s.key.stream)
	e.micros = s.integer(v, s.key.time)
	e.category = s.text(v, s.key.category)
	e.compile = s.text(v, s.key.compile)
	e.pool = s.poolAt(v)
	e.metadata, _ = s.Get(v, s.key.metadata)
	e.free = -1
	if free, ok := s.integerOK(v, s.key.free); ok && free >= 0 {
		e.free = free
	}
	e.stack, err = s.stackAt(v, s.key.frames)
	return e, err
}

// annotated yields the annotations, in the order of the file.
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
