package torch

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
)

// readRaw reads a snapshot from a pickle or JSON, packed by gzip or not.
func readRaw(in io.Reader, limit int64) (*raw, error) {
	r, err := bounded.NewReader(in, limit)
	if err != nil {
		return nil, err
	}
	head, _ := r.Peek(64)
	read := plain.ReadPickle
	if isJSON(head) {
		read = plain.ReadJSON
	}
	data, top, err := read(r)
	if err != nil {
		return nil, err
	}
	return newRaw(data, top)
}

// isJSON tells JSON from a pickle: "}" and "]" of protocol 1 build empty values
// that are stored with q, and a JSON text goes on after its first brace.
func isJSON(head []byte) bool {
	for _, c := range head {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return c == '{' || c == '['
	}
	return false
}

// newRaw finds the parts of a snapshot. Some programs keep the list of segments alone.
func newRaw(data *plain.Data, top plain.Value) (*raw, error) {
	s := &raw{Data: data, segmentList: top, stackReader: newStackReader(data)}
	s.lookUp()
	if top.Kind() == plain.List {
		return s, nil
	}
	if top.Kind() != plain.Dict {
		return nil, fmt.Errorf("the file holds %v, want a dict with segments, or a list of them", top.Kind())
	}
	for name, value := range data.Each(top) {
		switch name {
		case "segments":
			s.segmentList = value
		case "device_traces":
			if value.Kind() != plain.List {
				return nil, fmt.Errorf("device_traces is %v, want a list", value.Kind())
			}
			s.traces = data.List(value)
		case "external_annotations":
			s.annotations = value
		case "allocator_settings":
			s.settings = value
		}
	}
	if s.segmentList.Kind() != plain.List {
		return nil, fmt.Errorf("segments is %v, want a list: not a memory snapshot", s.segmentKind(top))
	}
	for device, events := range s.traces {
		if events.Kind() != plain.List {
			return nil, fmt.Errorf("device_traces[%d] is %v, want a list", device, events.Kind())
		}
	}
	return s, nil
}

func (s *raw) segmentKind(top plain.Value) plain.Kind {
	if s.segmentList == top {
		return plain.None
	}
	return s.segmentList.Kind()
}
