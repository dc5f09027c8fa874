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
	segmentList plain.Value   // of dicts
	traces      []plain.Value // lists of dicts, by device
	annotations plain.Value   // a list of dicts
	settings    plain.Value   // a dict
	visits      int64
	key         keys
}

// rawSegment is memory that the allocator holds from the driver.
type rawSegment struct {
	device      int
	address     int64
	total       int64 // bytes, as the next
	stream      int64
	kind        string // "small", "large"
	pool        poolID
	expandable  bool
	stack       *callStack
	blocks      plain.Value
	description string // for errors
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

// parsePool reads what String wrote. Another text, which PyTorch has no number for, is the
// default pool.
func parsePool(text string) (p poolID) {
	if n, _ := fmt.Sscanf(text, "%d,%d", &p[0], &p[1]); n != 2 {
		return poolID{}
	}
	return p
}

// rawBlock is a piece of a segment.
type rawBlock struct {
	address   int64
	size      int64 // bytes
	requested int64 // bytes; size where the file has none
	state     blockState
	stack     *callStack
	own       plain.Value // what Write adds: a dict of kind, dtype, shape and section
	label     string
}

type blockState uint8

const (
	inactive    blockState = iota // ready for reuse
	allocated                     // in use
	pendingFree                   // freed, and still in use by another stream
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

// keys are the keys of the dicts, looked up once.
type keys struct {
	device, address, total, stream, kind, pool, oldPool, expandable, frames, blocks,
	size, requested, state, history, realSize, own, label,
	action, addr, free, time, category, compile, metadata, stage, name plain.Key
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

// visit counts an element that is looked at. A small file can name a list often;
// one that was recorded has each once.
func (s *raw) visit() error {
	const base, perByte = 1 << 20, 1
	if s.visits++; s.visits > base+perByte*s.Bytes() {
		return fmt.Errorf("%w: its lists name each other more often than a file of its size has reason to", bounded.ErrTooLarge)
	}
	return nil
}

// dicts yields the dicts of a list, or what is wrong with it.
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
	b.address = at
	if b.size, err = s.need(v, s.key.size, "size"); err != nil {
		return b, err
	}
	if b.size < 0 {
		return b, fmt.Errorf("size is %d", b.size)
	}
	switch s.text(v, s.key.state) {
	case "active_allocated":
		b.state = allocated
	case "active_pending_free", "active_awaiting_free":
		b.state = pendingFree
	}
	b.own, _ = s.Get(v, s.key.own)
	b.label = s.text(v, s.key.label)
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

// latest returns the block's latest allocation in the layout of before 2023, which
// kept a list of them in "history".
func (s *raw) latest(block plain.Value) plain.Value {
	history, _ := s.Get(block, s.key.history)
	if list := s.List(history); len(list) > 0 {
		return list[0]
	}
	return plain.Value{}
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
