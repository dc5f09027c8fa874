package torch

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Read reads a memory snapshot that Write or torch.cuda.memory._dump_snapshot wrote: a pickle or
// JSON, packed by gzip or not. It returns the dump of the device with the most memory, with the
// dumps of the other devices as its Others, by number, and the usage of all devices. It runs
// nothing: a pickle that would call code is refused. The error says where the file is damaged, or
// that it is no such snapshot.
//
// What the fields of PyTorch become:
//
//   - A buffer is live from its alloc to its free_completed, when its memory can be used again. Its
//     label is the user_metadata and compile_context of the allocation, up to 256 bytes, or "freed,
//     used by another stream" if the program has freed it and only another stream still uses it.
//   - The allocated size of a live buffer is that of its block. For a buffer that is gone, it is
//     the requested size, rounded up to 512 bytes.
//   - Shapes and element types are unknown, because PyTorch does not record them.
//   - The host's pinned memory is in the dump as alloc.PinnedMemory, and counts in no total of a
//     device.
//   - What was live before the first event is found by going back from the end. It has no call
//     stack if it was freed since.
//   - Totals count the buffers in the file. Annotations are sections, and an event "snapshot" is a
//     mark.
//   - If the file has no times, as before PyTorch 2.1, events are a microsecond apart, and the time
//     of the snapshot is zero.
//
// The memory that Read takes grows with the file, up to 1 GiB; beyond that it returns an error. It
// keeps the innermost 1024 frames of a stack.
func Read(r io.Reader) (*snapshot.Dump, *export.Usage, error) {
	c, err := read(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	return c.Dump, c.Usage, nil
}

// ReadDump is Read with a usage that gets its rows by its method Fill, when they are needed. The errors are those of
// Read.
func ReadDump(r io.Reader) (*snapshot.Dump, *export.Usage, error) {
	c, err := readDeferred(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	return c.Dump, c.Usage, nil
}

// ReadLive reads what is live at the end of a history, and no more of the file than that takes: PyTorch writes the segments
// before the events. ok is false of a file in which they do not come first, and then nothing else is known of it. The dump has
// no events, and the buffers no kinds, which stand in the events. The errors are those of Read.
func ReadLive(r io.Reader) (d *snapshot.Dump, u *export.Usage, ok bool, err error) {
	in, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, nil, false, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	if head, _ := in.Peek(64); isJSON(head) {
		return nil, nil, false, nil
	}
	data, top, found, err := plain.ReadPickleUntil(in, "device_traces")
	if err != nil {
		return nil, nil, false, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	if _, has := data.Get(top, data.Key("segments")); !found || !has {
		return nil, nil, false, nil
	}
	s, err := newRaw(data, top)
	if err == nil {
		in := newSource(s)
		in.readOrigin()
		var c *contents
		if c, err = in.contents(nil); err == nil {
			return c.Dump, c.Usage, true, nil
		}
	}
	return nil, nil, false, fmt.Errorf("read PyTorch snapshot: %w", err)
}

// contents is everything that a file holds.
type contents struct {
	Dump  *snapshot.Dump
	Usage *export.Usage
}

// read reads a file, with the rows of its usage.
func read(r io.Reader) (*contents, error) {
	c, err := readDeferred(r)
	if err == nil {
		c.Usage.Fill()
	}
	return c, err
}

func readDeferred(r io.Reader) (*contents, error) {
	a := new(ahead)
	data, top, err := readPlain(r, 0, a)
	if err != nil {
		return nil, err
	}
	if c := a.contents(top); c != nil {
		return c, nil
	}
	s, err := newRaw(data, top)
	if err != nil {
		return nil, err
	}
	in := newSource(s)
	in.readOrigin()
	return in.contents(nil)
}

func newSource(s *raw) *source {
	return &source{
		raw: s, tensors: make(map[tensorKey]*tables.Tensor), sections: []string{""}, sectionIDs: map[string]uint32{"": 0},
		streams: []alloc.Stream{0}, streamIDs: map[int64]uint8{0: 0},
	}
}

// contents makes the dumps of the devices. Some may have begun: their events are read.
func (in *source) contents(begun map[int]*rebuilder) (*contents, error) {
	devices, err := in.devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		devices[0] = nil
	}
	in.host = in.hostDevice(devices)
	var c contents
	var dumps []*snapshot.Dump
	for _, ordinal := range slices.Sorted(maps.Keys(devices)) {
		r := begun[ordinal]
		if r == nil {
			r = in.newRebuilder(ordinal)
		}
		d, err := r.dump(devices[ordinal])
		if err != nil {
			return nil, err
		}
		dumps = append(dumps, d)
	}
	c.Usage = in.named().usage(dumps)
	c.Dump = fullest(dumps)
	return &c, nil
}

// fullest returns the dump with the most memory, with the other dumps as its Others.
func fullest(dumps []*snapshot.Dump) *snapshot.Dump {
	most := slices.MaxFunc(dumps, func(x, y *snapshot.Dump) int { return cmp.Compare(x.Snapshot.Reserved, y.Snapshot.Reserved) })
	for _, r := range dumps {
		if r != most {
			most.Others = append(most.Others, r)
		}
	}
	return most
}

// source is a file that is being read, and what its dumps share.
type source struct {
	*raw
	own        bool         // the file is one of Write
	memory     alloc.Memory // memory type of buffers that name none
	device     string       // the name of all its devices
	origin     snapshot.Origin
	tensors    map[tensorKey]*tables.Tensor
	sections   []string
	sectionIDs map[string]uint32
	streams    []alloc.Stream
	streamIDs  map[int64]uint8
}

type tensorKey struct {
	kind, dtype, shape string
	memory             alloc.Memory
	size               int64
}

// readOrigin reads the process and the device from a file that Write wrote.
func (in *source) readOrigin() {
	named := func(name string) string { return in.text(in.settings, in.Key(name)) }
	in.device = "cuda"
	if in.own = named("made_by") == "gpumemtrack"; in.own {
		in.origin = labels.Origin(named)
		in.device, _, _ = strings.Cut(named("device"), " [")
		in.memory = in.memoryNamed(named("memory"))
	}
}

// devices returns the segments of each device, sorted by address. A device that has only events has
// none.
func (in *source) devices() (map[int][]rawSegment, error) {
	devices := make(map[int][]rawSegment)
	for s, err := range in.segments() {
		if err != nil {
			return nil, err
		}
		if err := in.Use(rawSegmentBytes); err != nil {
			return nil, err
		}
		devices[s.device] = append(devices[s.device], s)
	}
	for device, events := range in.traces {
		if in.Len(events) > 0 && len(devices[device]) == 0 {
			if device >= maxDevices {
				return nil, fmt.Errorf("device_traces has %d devices, want at most %d", len(in.traces), maxDevices)
			}
			devices[device] = nil
		}
	}
	for _, segments := range devices {
		slices.SortStableFunc(segments, func(x, y rawSegment) int { return cmp.Compare(uint64(x.address), uint64(y.address)) })
	}
	return devices, nil
}

// hostDevice returns the device that has the host's memory; -1 if the file has none.
func (in *source) hostDevice(devices map[int][]rawSegment) int {
	if in.Len(in.hostSegments)+len(in.hostTrace) == 0 {
		return -1
	}
	best, most := -1, int64(-1)
	for device, segments := range devices {
		var size int64
		for i := range segments {
			size += max(0, segments[i].total)
		}
		if size > most || size == most && device < best {
			best, most = device, size
		}
	}
	return best
}

// The bytes that things take, as plain.Data.Use counts them.
const (
	rawSegmentBytes = 160
	tensorBytes     = 160
	sectionBytes    = 80
)

// tensor returns the description of a buffer of that size. PyTorch knows only a category; a file of
// Write has the rest.
func (in *source) tensor(d described, size int64) (*tables.Tensor, error) {
	key := tensorKey{d.kind, d.dtype, d.shape, in.memoryNamed(d.memory), size}
	if d.host {
		key.memory = alloc.PinnedMemory
	}
	if x, ok := in.tensors[key]; ok {
		return x, nil
	}
	x := newTensor(key)
	in.tensors[key] = x
	return x, in.Use(tensorBytes + int64(len(d.shape)))
}

// memoryNamed returns the type of memory with that name, or the default one for an empty name. The
// format has no host memory.
func (in *source) memoryNamed(name string) alloc.Memory {
	if name == "" {
		return in.memory
	}
	if m := alloc.UnknownMemory; m.UnmarshalText([]byte(name)) == nil && !m.OnHost() {
		return m
	}
	return in.memory
}

func newTensor(key tensorKey) *tables.Tensor {
	kind, err := mem.ParseKind(key.kind)
	if err != nil {
		kind = ""
	}
	if key.dtype == "" { // PyTorch has none, and an error would cost more than the rest
		return &tables.Tensor{Kind: kind, Memory: key.memory, Each: alloc.Bytes(key.size)}
	}
	if dtype, err := alloc.ParseDType(key.dtype); err == nil {
		if shape, err := alloc.ParseShape(key.shape); err == nil {
			if x, err := tables.NewTensor(shape, dtype, kind); err == nil && int64(x.Each) == key.size {
				x.Memory = key.memory
				return &x
			}
		}
	}
	return &tables.Tensor{Kind: kind, Memory: key.memory, Each: alloc.Bytes(key.size)}
}

// section numbers a section's path.
func (in *source) section(path string) (uint32, error) {
	id, ok := in.sectionIDs[path]
	if !ok {
		if len(in.sections) >= tables.MaxSections {
			return 0, nil
		}
		id = uint32(len(in.sections))
		in.sections = append(in.sections, path)
		in.sectionIDs[path] = id
	}
	return id, in.Use(sectionBytes)
}

// streamOf numbers a stream. Those beyond tables.MaxStreams count as the last.
func (in *source) streamOf(handle int64) uint8 {
	n, ok := in.streamIDs[handle]
	if !ok && len(in.streams) < tables.MaxStreams {
		n = uint8(len(in.streams))
		in.streams = append(in.streams, alloc.Stream(handle))
		in.streamIDs[handle] = n
	} else if !ok {
		n = tables.MaxStreams - 1
	}
	return n
}

// maxSettings limits the settings that are kept. PyTorch has some twenty.
const maxSettings = 256

// allocatorSettings returns the settings as text. A value that is a dict, such as
// the divisions by size, has its keys after a dot.
func (in *source) allocatorSettings() map[string]string {
	if in.own || in.settings.Kind() != plain.Dict {
		return nil
	}
	out := make(map[string]string)
	for name, value := range in.Each(in.settings) {
		if len(out) >= maxSettings {
			break
		}
		if value.Kind() != plain.Dict {
			out[name] = in.scalar(value)
			continue
		}
		for part, value := range in.Each(value) {
			if len(out) < maxSettings {
				out[name+"."+part] = in.scalar(value)
			}
		}
	}
	return out
}

// scalar prints a value that holds no others.
func (in *source) scalar(v plain.Value) string {
	if is, ok := v.Bool(); ok {
		return strconv.FormatBool(is)
	}
	if n, ok := v.Int(); ok {
		return strconv.FormatInt(n, 10)
	}
	if f, ok := v.Float(); ok {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return in.Str(v)
}

// described is what Write noted about a block or an event.
type described struct {
	kind, dtype, shape, memory, section string

	host bool // in the host's memory
}

// ofBlock reads the dict that Write adds to a block.
func (in *source) ofBlock(block plain.Value) (d described, ok bool) {
	own, _ := in.Get(block, in.key.own)
	if own.Kind() != plain.Dict {
		return d, false
	}
	named := func(name string) string { return in.text(own, in.Key(name)) }
	return described{kind: named("kind"), dtype: named("dtype"), shape: named("shape"), memory: named("memory"), section: named("section")}, true
}

// description is the text that Write adds to an event: see describe.
var description = regexp.MustCompile(`^(.+) (\([0-9, ]*\)) (\S+)(?: of (\w+) memory)?(?: in (.*))?$`)

func (in *source) ofEvent(e *rawEvent) (d described) {
	d.kind, d.host = kindNamed(e.category), e.host
	if in.own {
		if m := description.FindStringSubmatch(in.Str(e.metadata)); m != nil {
			d = described{kind: m[1], dtype: m[3], shape: m[2], memory: m[4], section: m[5]}
		}
	}
	return d
}

// kindNamed turns a category of PyTorch's profiler into our word, where there is one.
func kindNamed(category string) string {
	for kind, name := range categories {
		if name == category {
			return kind.String()
		}
	}
	return category
}
