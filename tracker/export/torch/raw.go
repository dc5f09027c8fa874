package torch

import (
	"fmt"
	"io"
	"iter"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
)

// raw is a memory snapshot as PyTorch's file has it: every part of every version
// since 2022. Segments, blocks and events are made as they are asked for, so that
// they take no memory beside the file's own.
type raw struct {
	*plain.Data
	stackReader
	segmentList plain.Value   // a list of dicts
	traces      []plain.Value // lists of dicts, by device
	annotations plain.Value   // a list of dicts
	settings    plain.Value   // a dict

	hostSegments plain.Value   // a list of dicts
	hostTrace    []plain.Value // lists of dicts
	host         int           // the device that gets the host memory; -1 if there is none

	visits int64
	sum    int64 // bytes of all sizes that were looked at
	key    keys
}

// poolID names a private pool; the zero one is the default pool.
type poolID [2]int64

// String is the name of alloc.Segment.Private: "0,1", or "" of the default pool.
func (p poolID) String() string {
	if p == (poolID{}) {
		return ""
	}
	return fmt.Sprintf("%d,%d", p[0], p[1])
}

// parsePool reads what String wrote. Any other text stands for the default pool.
func parsePool(text string) (p poolID) {
	if n, _ := fmt.Sscanf(text, "%d,%d", &p[0], &p[1]); n != 2 {
		return poolID{}
	}
	return p
}

// keys are the keys of the dicts, looked up once.
type keys struct {
	device, address, total, stream, kind, pool, oldPool, expandable, frames, blocks,
	size, requested, state, history, realSize, own, label,
	action, addr, free, time, category, compile, metadata, stage, name plain.Key
}

func (s *raw) lookUp() {
	for _, k := range []struct {
		key  *plain.Key
		text string
	}{
		{&s.key.device, "device"}, {&s.key.address, "address"}, {&s.key.total, "total_size"}, {&s.key.stream, "stream"},
		{&s.key.kind, "segment_type"}, {&s.key.pool, "segment_pool_id"}, {&s.key.oldPool, "pool_id"}, {&s.key.expandable, "is_expandable"},
		{&s.key.frames, "frames"}, {&s.key.blocks, "blocks"}, {&s.key.size, "size"}, {&s.key.requested, "requested_size"},
		{&s.key.state, "state"}, {&s.key.history, "history"}, {&s.key.realSize, "real_size"}, {&s.key.own, "gpumemtrack"},
		{&s.key.label, "label"}, {&s.key.action, "action"}, {&s.key.addr, "addr"}, {&s.key.free, "device_free"},
		{&s.key.time, "time_us"}, {&s.key.category, "category"}, {&s.key.compile, "compile_context"}, {&s.key.metadata, "user_metadata"},
		{&s.key.stage, "stage"}, {&s.key.name, "name"},
	} {
		*k.key = s.Key(k.text)
	}
}

// visit counts an element that is read. A recorded file refers to each list once, but a hostile
// small one can refer to the same list again and again.
func (s *raw) visit() error {
	const base, perByte = 1 << 20, 1
	if s.visits++; s.visits > base+perByte*s.Bytes() {
		return fmt.Errorf("%w: its lists name each other more often than a file of its size has reason to", bounded.ErrTooLarge)
	}
	return nil
}

// amount checks a size, and that the sums of the sizes fit an int64, however often they are added up.
func (s *raw) amount(n int64, name string) error {
	const most = 1 << 62
	switch {
	case n < 0:
		return fmt.Errorf("%s is %d", name, n)
	case n > most-s.sum:
		return fmt.Errorf("%s is %d: with it, the sizes come to more than any device has", name, n)
	}
	s.sum += n
	return nil
}

// atMost returns n, limited to what there is room for: a file may name one list again and again.
func (s *raw) atMost(n int) int {
	const least = 16 // bytes of text that a block or an event takes
	return int(min(int64(n), s.Bytes()/least))
}

// dicts yields the dicts of a list. If one is wrong, it yields the error.
func (s *raw) dicts(list plain.Value, name string) iter.Seq2[plain.Value, error] {
	return func(yield func(plain.Value, error) bool) {
		for i, v := range s.List(list) {
			err := s.visit()
			if err == nil && v.Kind() != plain.Dict {
				err = fmt.Errorf("%s[%d] is %v, want a dict", name, i, v.Kind())
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// text returns the string at the key, "" if there is none.
func (s *raw) text(v plain.Value, k plain.Key) string {
	value, _ := s.Get(v, k)
	return s.Str(value)
}

func (s *raw) integerOK(v plain.Value, k plain.Key) (int64, bool) {
	value, _ := s.Get(v, k)
	return value.Int()
}

// integer returns the integer at the key, 0 if there is none.
func (s *raw) integer(v plain.Value, k plain.Key) int64 {
	n, _ := s.integerOK(v, k)
	return n
}

// need returns the integer at the key, which must be there.
func (s *raw) need(v plain.Value, k plain.Key, name string) (int64, error) {
	value, ok := s.Get(v, k)
	if !ok {
		return 0, fmt.Errorf("there is no %s", name)
	}
	n, ok := value.Int()
	if !ok {
		return 0, fmt.Errorf("%s is %v, want an integer", name, value.Kind())
	}
	return n, nil
}

func (s *raw) poolAt(v plain.Value) (id poolID) {
	value, ok := s.Get(v, s.key.pool)
	if !ok {
		value, _ = s.Get(v, s.key.oldPool)
	}
	for i, part := range s.List(value) {
		if i < len(id) {
			id[i], _ = part.Int()
		}
	}
	return id
}

func (s *raw) stackAt(v plain.Value, k plain.Key) (*callStack, error) {
	frames, _ := s.Get(v, k)
	return s.stack(frames)
}

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
	s := &raw{Data: data, segmentList: top, stackReader: newStackReader(data), host: -1}
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
		case "host_segments":
			s.hostSegments = value
		case "host_traces":
			s.hostTrace = s.hostTraceOf(value)
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

// hostTraceOf returns the lists of events in "host_traces": one, or one for each of several allocators.
func (s *raw) hostTraceOf(v plain.Value) []plain.Value {
	lists := s.List(v)
	if len(lists) > 0 && lists[0].Kind() == plain.Dict {
		return []plain.Value{v}
	}
	return lists
}
