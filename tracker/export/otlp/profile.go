package otlp

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/proto"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/slim/otlp/profiles/v1development"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	wire "github.com/gpumemtrack/gpumemtrack/internal/otlp"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// sampleTypes are those of pprof's profiles. Live buffers in host memory are in no other than the last two.
var sampleTypes = [...]struct{ name, unit string }{
	{"alloc_objects", "count"}, {"alloc_space", "bytes"},
	{"inuse_objects", "count"}, {"inuse_space", "bytes"},
	{"host_objects", "count"}, {"host_space", "bytes"},
}

// maxBatchBytes is the size at which a batch is full. It is a fraction of what servers take, because the size is estimated.
const maxBatchBytes = wire.MaxRequestBytes / 4

// batch is a request under construction: changes of one or more sources, with one dictionary.
type batch struct {
	data     profilespb.ProfilesData
	dict     *profilespb.ProfilesDictionary
	bytes    int // about the size of data
	samples  int
	profiles int
	done     []settlement
	payload  []byte // once it was encoded

	strings    map[string]int32
	attributes map[attribute]int32
	functions  map[function]int32
	locations  map[location]int32
	stacks     map[stackKey]int32
	contents   map[string]int32 // the same stacks by their locations
	mappings   map[string]int32

	// Of the source whose changes are being added.
	source   *delivered
	snapshot *snapshot.Snapshot
	device   []*commonpb.KeyValue
	id       int32 // attribute hw.id
	mapping  int32
	scope    *profilespb.ScopeProfiles // nil before the first change
	open     [len(sampleTypes)]*profilespb.Profile
}

// settlement is done once the server has taken the batch.
type settlement struct {
	of     *delivered
	change change
	whole  bool      // not a change: all of a snapshot is delivered
	at     time.Time // the snapshot's
}

type (
	attribute struct{ key, value string }
	function  struct{ name, file string }
	location  struct {
		mem.Frame
		mapping int32
	}
	stackKey struct {
		of      *delivered
		id      tables.StackID
		mapping int32
	}
)

// newBatch returns a batch whose tables begin with the zero value that the protocol demands.
func newBatch() *batch {
	b := &batch{
		dict: &profilespb.ProfilesDictionary{
			MappingTable: []*profilespb.Mapping{{}}, LocationTable: []*profilespb.Location{{}}, FunctionTable: []*profilespb.Function{{}},
			LinkTable:   []*profilespb.Link{{TraceId: make([]byte, 16), SpanId: make([]byte, 8)}},
			StringTable: []string{""}, AttributeTable: []*profilespb.KeyValueAndUnit{{}}, StackTable: []*profilespb.Stack{{}},
		},
		strings: map[string]int32{"": 0}, attributes: make(map[attribute]int32), functions: make(map[function]int32),
		locations: make(map[location]int32), stacks: make(map[stackKey]int32), contents: make(map[string]int32), mappings: make(map[string]int32),
	}
	b.data.Dictionary = b.dict
	return b
}

// begin makes s, of a source, the snapshot to which the next changes belong.
func (b *batch) begin(source *delivered, s *snapshot.Snapshot) {
	b.source, b.snapshot, b.scope = source, s, nil
	b.open = [len(sampleTypes)]*profilespb.Profile{}
}

// resource adds the resource of the current snapshot.
func (b *batch) resource(configured map[string]any) {
	s := b.snapshot
	b.device = deviceOf(s)
	b.id = b.attribute("hw.id", b.device[0].Value.GetStringValue())
	b.mapping = b.mappingOf(s.Origin.Program)
	b.scope = &profilespb.ScopeProfiles{Scope: wire.Scope(), SchemaUrl: wire.SchemaURL}
	resource := &profilespb.ResourceProfiles{
		Resource: resourceOf(configured, s.Origin), ScopeProfiles: []*profilespb.ScopeProfiles{b.scope}, SchemaUrl: wire.SchemaURL,
	}
	b.data.ResourceProfiles = append(b.data.ResourceProfiles, resource)
	b.bytes += proto.Size(resource)
}

// add adds a change of the current snapshot.
func (b *batch) add(c change, configured map[string]any) {
	if b.scope == nil {
		b.resource(configured)
	}
	b.done = append(b.done, settlement{of: b.source, change: c})
	values := [len(sampleTypes)]int64{c.total.Count, int64(c.total.Bytes), c.live.Count, int64(c.live.Bytes), 0, 0}
	if c.memory.OnHost() {
		values = [len(sampleTypes)]int64{4: c.live.Count, 5: int64(c.live.Bytes)}
	}
	if values == ([len(sampleTypes)]int64{}) {
		return
	}
	stack, attributes := b.stack(c.stack), b.labels(&c)
	for i, value := range values {
		if value == 0 {
			continue
		}
		p := b.open[i]
		if p == nil {
			p = b.profile(i)
			b.open[i] = p
		}
		p.Samples = append(p.Samples, &profilespb.Sample{StackIndex: stack, AttributeIndices: attributes, Values: []int64{value}})
		b.samples++
		b.bytes += 20 + 3*len(attributes)
	}
}

// end notes that all changes of the current snapshot are in this batch or in earlier ones.
func (b *batch) end() {
	b.done = append(b.done, settlement{of: b.source, whole: true, at: b.snapshot.Time})
}

// settle notes that the server has taken the batch.
func (b *batch) settle() {
	for i := range b.done {
		if d := &b.done[i]; d.whole {
			d.of.until = d.at
		} else {
			d.of.take(&d.change)
		}
	}
}

func (b *batch) full() bool { return b.bytes >= maxBatchBytes }

// encode returns the request.
func (b *batch) encode() []byte {
	payload, _ := proto.Marshal(&b.data) // its strings are valid UTF-8
	return payload
}

// profile adds an empty profile of the current snapshot, from the latest that was delivered until now.
func (b *batch) profile(of int) *profilespb.Profile {
	since := b.source.until
	if since.IsZero() {
		since = tables.Of(&b.snapshot.Tables).Epoch
	}
	now := b.snapshot.Time
	if since.IsZero() || since.After(now) {
		since = now
	}
	p := &profilespb.Profile{
		SampleType:   &profilespb.ValueType{TypeStrindex: b.string(sampleTypes[of].name), UnitStrindex: b.string(sampleTypes[of].unit)},
		TimeUnixNano: uint64(since.UnixNano()), DurationNano: uint64(now.Sub(since)), ProfileId: make([]byte, 16),
	}
	_, _ = rand.Read(p.ProfileId) // never fails
	p.PeriodType, p.Period = &profilespb.ValueType{TypeStrindex: b.string("space"), UnitStrindex: b.string("bytes")}, 1
	p.AttributeIndices = append(p.AttributeIndices, b.attribute("gpumem.profile.temporality", "delta"))
	for _, a := range b.device {
		p.AttributeIndices = append(p.AttributeIndices, b.attribute(a.Key, a.Value.GetStringValue()))
	}
	b.scope.Profiles = append(b.scope.Profiles, p)
	b.profiles++
	b.bytes += 80
	return p
}

// labels returns the attributes of a sample.
func (b *batch) labels(c *change) []int32 {
	all := make([]int32, 0, 8)
	set := func(key, value string) {
		if value != "" {
			all = append(all, b.attribute(key, value))
		}
	}
	all = append(all, b.id)
	if c.tensor != nil {
		set("gpumem.kind", c.tensor.Kind.String())
		if c.tensor.DType.Bits() > 0 {
			set("gpumem.dtype", c.tensor.DType.String())
			set("gpumem.shape", c.tensor.Shape.String())
		}
		set("gpumem.stream", labels.Stream(c.stream))
	}
	if c.memory != alloc.UnknownMemory {
		set("gpumem.memory", c.memory.String())
	}
	set("gpumem.section", c.section)
	return all
}

func (b *batch) string(s string) int32 {
	i, known := b.strings[s]
	if !known {
		i = int32(len(b.dict.StringTable))
		valid := text.UTF8(s)
		b.dict.StringTable = append(b.dict.StringTable, valid)
		b.strings[s] = i
		b.bytes += len(valid) + 3
	}
	return i
}

func (b *batch) attribute(key, value string) int32 {
	i, known := b.attributes[attribute{key, value}]
	if !known {
		i = int32(len(b.dict.AttributeTable))
		b.dict.AttributeTable = append(b.dict.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: b.string(key), Value: wire.Value(value)})
		b.attributes[attribute{key, value}] = i
		b.bytes += len(value) + 12
	}
	return i
}

func (b *batch) mappingOf(program string) int32 {
	if program == "" {
		return 0
	}
	i, known := b.mappings[program]
	if !known {
		i = int32(len(b.dict.MappingTable))
		b.dict.MappingTable = append(b.dict.MappingTable, &profilespb.Mapping{FilenameStrindex: b.string(program)})
		b.mappings[program] = i
	}
	return i
}

// stack returns a stack of the current source.
func (b *batch) stack(id tables.StackID) int32 {
	key := stackKey{b.source, id, b.mapping}
	i, known := b.stacks[key]
	if known {
		return i
	}
	frames := tables.Of(&b.snapshot.Tables).Stacks.Stack(id)
	if len(frames) == 0 {
		return 0
	}
	indices, content := make([]int32, len(frames)), make([]byte, 0, 4*len(frames))
	for at, f := range frames {
		indices[at] = b.location(f)
		content = binary.LittleEndian.AppendUint32(content, uint32(indices[at]))
	}
	if i, known = b.contents[string(content)]; !known {
		i = int32(len(b.dict.StackTable))
		b.dict.StackTable = append(b.dict.StackTable, &profilespb.Stack{LocationIndices: indices})
		b.contents[string(content)] = i
		b.bytes += 6 + 3*len(indices)
	}
	b.stacks[key] = i
	return i
}

// location returns a line of code. A function that is inlined has a location of its own: a mem.Frame does not say what it was
// inlined into.
func (b *batch) location(f mem.Frame) int32 {
	key := location{f, b.mapping}
	i, known := b.locations[key]
	if !known {
		i = int32(len(b.dict.LocationTable))
		line := &profilespb.Line{FunctionIndex: b.function(f), Line: int64(max(0, f.Line))}
		b.dict.LocationTable = append(b.dict.LocationTable, &profilespb.Location{MappingIndex: b.mapping, Lines: []*profilespb.Line{line}})
		b.locations[key] = i
		b.bytes += 16
	}
	return i
}

func (b *batch) function(f mem.Frame) int32 {
	key := function{f.Function, f.File}
	i, known := b.functions[key]
	if !known {
		i = int32(len(b.dict.FunctionTable))
		name := b.string(f.Function)
		b.dict.FunctionTable = append(b.dict.FunctionTable, &profilespb.Function{NameStrindex: name, SystemNameStrindex: name, FilenameStrindex: b.string(f.File)})
		b.functions[key] = i
		b.bytes += 14
	}
	return i
}
