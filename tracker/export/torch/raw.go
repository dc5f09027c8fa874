package torch

import (
	"fmt"
	"io"
	"iter"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
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

	beside bool         // another goroutine uses the Data
	used   atomic.Int64 // bytes that were not counted yet

	visits int64
	sum    int64 // bytes of all sizes that were looked at
	key    keys
}

// keys are the keys of the dicts, looked up once.
type keys struct {
	device, address, total, stream, kind, pool, oldPool, expandable, frames, blocks,
	size, requested, state, history, realSize, own, label,
	action, addr, free, time, category, compile, metadata, stage, name plain.Key
}

func (s *raw) initKeys() {
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

// Use counts memory as plain.Data does. While events are rebuilt beside the reader, the reader's next batch counts it.
func (s *raw) Use(bytes int64) error {
	if s.beside {
		s.used.Add(bytes)
		return nil
	}
	return s.take(bytes)
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

// checkSize checks a size, and that the sums of the sizes fit an int64, however often they are added up.
func (s *raw) checkSize(n int64, name string) error {
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
		for i := range s.Len(list) {
			v := s.Element(list, i)
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

// required returns the integer at the key, which must be there.
func (s *raw) required(v plain.Value, k plain.Key, name string) (int64, error) {
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

func (s *raw) stackAt(v plain.Value, k plain.Key) (tables.StackID, error) {
	frames, _ := s.Get(v, k)
	return s.stack(frames)
}

// readRaw reads a snapshot from a pickle or JSON, packed by gzip or not.
func readRaw(in io.Reader, limit int64) (*raw, error) {
	data, top, err := readPlain(in, limit, nil)
	if err != nil {
		return nil, err
	}
	return newRaw(data, top)
}

// readPlain reads the values of a file. It rebuilds events of a pickle beside that, unless a is nil.
func readPlain(in io.Reader, limit int64, a *ahead) (data *plain.Data, top plain.Value, err error) {
	r, err := bounded.NewReader(in, limit)
	if err != nil {
		return nil, plain.Value{}, err
	}
	head, _ := r.Peek(64)
	switch {
	case isJSON(head):
		return plain.ReadJSON(r)
	case a == nil:
		return plain.ReadPickle(r)
	}
	final := false
	defer func() { a.end(final && err == nil) }() // also if the input panics
	data, top, final, err = plain.ReadPickleBeside(r, a.batch)
	return data, top, err
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
	s := emptyRaw(data)
	if top.Kind() == plain.List {
		s.segmentList = top
		return s, nil
	}
	if top.Kind() != plain.Dict {
		return nil, fmt.Errorf("the file holds %v, want a dict with segments, or a list of them", top.Kind())
	}
	return s, s.add(data.Each(top))
}

func emptyRaw(data *plain.Data) *raw {
	s := &raw{Data: data, stackReader: newStackReader(data), host: -1}
	s.initKeys()
	return s
}

// add adds the parts of a snapshot.
func (s *raw) add(parts iter.Seq2[string, plain.Value]) error {
	for name, value := range parts {
		switch name {
		case "segments":
			s.segmentList = value
		case "device_traces":
			if value.Kind() != plain.List {
				return fmt.Errorf("device_traces is %v, want a list", value.Kind())
			}
			s.traces = s.List(value)
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
		return fmt.Errorf("segments is %v, want a list: not a memory snapshot", s.segmentList.Kind())
	}
	for device, events := range s.traces {
		if events.Kind() != plain.List {
			return fmt.Errorf("device_traces[%d] is %v, want a list", device, events.Kind())
		}
	}
	return nil
}

// hostTraceOf returns the lists of events in "host_traces": one, or one for each of several allocators.
func (s *raw) hostTraceOf(v plain.Value) []plain.Value {
	lists := s.List(v)
	if len(lists) > 0 && lists[0].Kind() == plain.Dict {
		return []plain.Value{v}
	}
	return lists
}

// rawEvent is one entry of a device's trace.
type rawEvent struct {
	action   string
	addr     int64
	size     int64 // bytes
	free     int64 // free bytes of the device at an oom; -1 if unknown
	stream   int64
	micros   int64 // microseconds since 1970; 0 if unknown, as before PyTorch 2.1
	stack    tables.StackID
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
		n = s.Len(s.traces[device])
	}
	if device == s.host {
		for _, list := range s.hostTrace {
			n += s.Len(list)
		}
	}
	return s.atMost(n)
}

func (s *raw) event(v plain.Value) (e rawEvent, err error) {
	e.action = s.text(v, s.key.action)
	e.addr = s.integer(v, s.key.addr)
	e.size = max(0, s.integer(v, s.key.size))
	if e.action != "oom" { // which may have asked for anything
		if err := s.checkSize(e.size, "size"); err != nil {
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
	stack       tables.StackID
	blocks      plain.Value
	description string // for error messages
}

// rawBlock is a piece of a segment.
type rawBlock struct {
	address   int64
	size      int64 // bytes
	requested int64 // bytes; size where the file has none
	state     blockState
	stack     tables.StackID
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
	device, err := s.required(v, s.key.device, "device")
	if err != nil {
		return g, err
	}
	if device < 0 || device >= maxDevices {
		return g, fmt.Errorf("device is %d, want 0 to %d", device, maxDevices-1)
	}
	g.device = int(device)
	if g.address, err = s.required(v, s.key.address, "address"); err != nil {
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
	if b.size, err = s.required(v, s.key.size, "size"); err != nil {
		return b, err
	}
	if err = s.checkSize(b.size, "size"); err != nil {
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
