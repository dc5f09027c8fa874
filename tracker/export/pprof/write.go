package pprof

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// The labels of a sample, besides those of its origin.
const (
	labelDevice  = "device"
	labelKind    = "kind"
	labelDType   = "dtype"
	labelShape   = "shape"
	labelSection = "section"
	labelStream  = "stream"
	labelMemory  = "memory"
)

// The sample types, in the order of Go's heap profile.
const (
	allocObjects = "alloc_objects"
	allocSpace   = "alloc_space"
	inuseObjects = "inuse_objects"
	inuseSpace   = "inuse_space"

	// Live buffers in host memory, where there are any: no other column counts them.
	hostObjects = "host_objects"
	hostSpace   = "host_space"
)

// Write writes the dump's snapshot as a gzipped profile. The error is that the dump has no snapshot,
// or the writer's.
func Write(w io.Writer, r *snapshot.Dump) error {
	if r.Snapshot == nil {
		return fmt.Errorf("write pprof: %w", walk.ErrNoSnapshot)
	}
	return WriteUsage(w, export.FromSnapshot(r.Snapshot))
}

// WriteUsage writes memory by call stack as a gzipped profile. The error is the writer's.
func WriteUsage(w io.Writer, u *export.Usage) error {
	return write(w, profileOf(u))
}

// WriteDelta writes the changes from base to next as a gzipped profile. Its time is that of base, and it lasts until that
// of next. The error is the writer's, or says that only one of the two has totals or host memory.
func WriteDelta(w io.Writer, next, base *export.Usage) error {
	delta, err := sub(profileOf(next), profileOf(base))
	if err != nil {
		return fmt.Errorf("write pprof: %w", err)
	}
	return write(w, delta)
}

func write(w io.Writer, p *profile.Profile) error {
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("write pprof: %w", err)
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("write pprof: %w", err)
	}
	return nil
}

// sub returns the changes from base to next, neither of which is of use then.
func sub(next, base *profile.Profile) (*profile.Profile, error) {
	base.Scale(-1)
	delta, err := profile.Merge([]*profile.Profile{base, next})
	if err != nil {
		return nil, err
	}
	delta.TimeNanos = next.TimeNanos
	delta.DurationNanos = next.TimeNanos - base.TimeNanos
	return delta, nil
}

// unnamed is the mapping's file where the program is not known.
const unnamed = "gpumem"

// profileOf returns memory by call stack as a profile. If the usage has no totals, only the live
// memory is in it. The stacks include the library frames below each call site; DropFrames names
// them, so that go tool pprof shows the call sites as leaves.
func profileOf(u *export.Usage) *profile.Profile {
	b := builder{
		p: &profile.Profile{
			SampleType: []*profile.ValueType{
				{Type: allocObjects, Unit: "count"}, {Type: allocSpace, Unit: "bytes"},
				{Type: inuseObjects, Unit: "count"}, {Type: inuseSpace, Unit: "bytes"},
			},
			DropFrames:        passedOver(u),
			DefaultSampleType: inuseSpace,
			PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
			Period:            1,
			TimeNanos:         u.Time.UnixNano(),
			// pprof looks for symbols itself unless the mapping says that all are here.
			Mapping: []*profile.Mapping{{
				ID: 1, File: text.UTF8(cmp.Or(u.Origin.Program, unnamed)), HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
			}},
		},
		stacks:    make(map[lines.StackID][]*profile.Location),
		locations: make(map[mem.Frame]*profile.Location),
		functions: make(map[function]*profile.Function),
	}
	if u.Time.IsZero() {
		b.p.TimeNanos = 0
	}
	b.liveOnly = liveOnly(u)
	if b.liveOnly {
		b.p.SampleType = b.p.SampleType[2:]
	}
	for i := range u.Rows {
		b.add(&u.Rows[i], u.Origin)
	}
	b.addHost(u)
	return b.p
}

// liveOnly reports whether the usage has no totals. Where there are totals, they are never less
// than what is live.
func liveOnly(u *export.Usage) bool {
	live := false
	for i := range u.Rows {
		if !u.Rows[i].Total.IsZero() {
			return false
		}
		live = live || !u.Rows[i].Live.IsZero()
	}
	return live
}

// builder shares the locations of stacks and the functions of locations.
type builder struct {
	p         *profile.Profile
	liveOnly  bool
	stacks    map[lines.StackID][]*profile.Location
	locations map[mem.Frame]*profile.Location
	functions map[function]*profile.Function
}

type function struct{ name, file string }

func (b *builder) add(r *export.Row, o snapshot.Origin) {
	if r.Live.IsZero() && r.Total.IsZero() {
		return
	}
	values := []int64{r.Total.Count, int64(r.Total.Bytes), r.Live.Count, int64(r.Live.Bytes)}
	if b.liveOnly {
		values = values[2:]
	}
	b.sample(r, o, values)
}

// addHost adds the columns of host memory, if there is any.
func (b *builder) addHost(u *export.Usage) {
	if len(u.Host) == 0 {
		return
	}
	columns := len(b.p.SampleType)
	b.p.SampleType = append(b.p.SampleType, &profile.ValueType{Type: hostObjects, Unit: "count"}, &profile.ValueType{Type: hostSpace, Unit: "bytes"})
	for _, s := range b.p.Sample {
		s.Value = append(s.Value, 0, 0)
	}
	for i := range u.Host {
		r := &u.Host[i]
		if !r.Live.IsZero() {
			b.sample(r, u.Origin, append(make([]int64, columns), r.Live.Count, int64(r.Live.Bytes)))
		}
	}
}

// sample adds a row with its values.
func (b *builder) sample(r *export.Row, o snapshot.Origin, values []int64) {
	known := make(map[string][]string)
	for _, l := range [...]struct{ key, value string }{
		{labelDevice, r.Device}, {labelKind, r.Kind}, {labelDType, r.DType}, {labelShape, r.Shape},
		{labelSection, r.Section}, {labelStream, r.Stream}, {labelMemory, r.Memory},
	} {
		if l.value != "" {
			known[l.key] = []string{text.UTF8(l.value)}
		}
	}
	for name, value := range labels.OfOrigin(o) {
		known[name] = []string{text.UTF8(value)}
	}
	b.p.Sample = append(b.p.Sample, &profile.Sample{
		Location: b.stack(r.Stack),
		Value:    values,
		Label:    known,
	})
}

func (b *builder) stack(s mem.Stack) []*profile.Location {
	id := lines.Identify(s)
	locations, ok := b.stacks[id]
	if !ok {
		for _, f := range s {
			locations = append(locations, b.location(f))
		}
		b.stacks[id] = locations
	}
	return locations
}

func (b *builder) location(f mem.Frame) *profile.Location {
	l := b.locations[f]
	if l == nil {
		l = &profile.Location{
			ID:      uint64(len(b.p.Location) + 1),
			Mapping: b.p.Mapping[0],
			Address: address(f),
			Line:    []profile.Line{{Function: b.function(f), Line: int64(f.Line)}},
		}
		b.locations[f] = l
		b.p.Location = append(b.p.Location, l)
	}
	return l
}

func (b *builder) function(f mem.Frame) *profile.Function {
	key := function{f.Function, f.File}
	fn := b.functions[key]
	if fn == nil {
		fn = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: text.UTF8(f.Function), Filename: text.UTF8(f.File)}
		fn.SystemName = fn.Name
		b.functions[key] = fn
		b.p.Function = append(b.p.Function, fn)
	}
	return fn
}

// address makes up an address for a line of code, since the real one is not known. Programs that
// subtract profiles without reading symbols (such as Pyroscope's scraper) identify stacks by
// addresses. So equal lines have equal addresses in all profiles, and different lines have
// different ones. It is not 0, and below 1<<52, which JavaScript can represent.
func address(f mem.Frame) uint64 {
	h := fnv.New64a()
	h.Write([]byte(f.Function))
	h.Write([]byte{0})
	h.Write([]byte(f.File))
	h.Write([]byte{0})
	h.Write([]byte(strconv.Itoa(f.Line)))
	return max(1, h.Sum64()>>12)
}

// The bytes of memory that a profile takes once it is parsed: for each part, such as
// a sample, a location, a label or a string, and for each byte within it. An ID of one or
// two bytes becomes two of eight.
const (
	partBytes   = 160
	insideBytes = 16
)

// perByte is how much memory a profile may take for each byte of its text, beyond
// bounded.Base. Those that programs write take 20 to 30.
const perByte = 48

// checkSize refuses a profile that needs more memory than the limit, or far more than its text,
// such as a million samples of no bytes each.
func checkSize(text []byte, limit int64) error {
	const sample, location = 2, 4 // the parts that have parts
	most := bounded.Base + perByte*int64(len(text))
	budget := min(most, limit)
	for field, inside := range parts(text) {
		budget -= partBytes + insideBytes*int64(len(inside))
		if field == sample || field == location {
			for range parts(inside) {
				budget -= partBytes
			}
		}
		if budget < 0 && most > limit {
			return &bounded.LimitError{Memory: true, Limit: limit, Read: int64(len(text))}
		}
		if budget < 0 {
			return fmt.Errorf("%w: %d bytes of profile hold more parts than a profile of that size has reason to", bounded.ErrTooLarge, len(text))
		}
	}
	return nil
}

// parts yields each field of a protocol buffer that consists of bytes: its number and the bytes. It ends
// where the text is no protocol buffer: the parser says what is wrong.
func parts(text []byte) func(yield func(field uint64, inside []byte) bool) {
	return func(yield func(uint64, []byte) bool) {
		for len(text) > 0 {
			tag, n := binary.Uvarint(text)
			if n <= 0 {
				return
			}
			text = text[n:]
			size := 0
			switch tag & 7 {
			case 0:
				_, size = binary.Uvarint(text)
			case 1:
				size = 8
			case 5:
				size = 4
			case 2:
				length, n := binary.Uvarint(text)
				if n <= 0 || length > uint64(len(text)-n) {
					return
				}
				text, size = text[n:], int(length)
				if !yield(tag>>3, text[:size]) {
					return
				}
			default:
				return
			}
			if size < 0 || size > len(text) || size == 0 && tag&7 == 0 {
				return
			}
			text = text[size:]
		}
	}
}

// passedOver returns a regular expression for the functions that lie below a call site in every
// stack: those of allocators, of libraries, and of capturing a stack. pprof drops a function
// together with all that it called. So a function that is a call site, or calls one in any stack,
// must not be named.
func passedOver(u *export.Usage) string {
	within := make(map[string]bool)
	seen := make(map[lines.StackID]bool)
	for i := range u.Rows {
		r := &u.Rows[i]
		id := lines.Identify(r.Stack)
		if seen[id] {
			continue
		}
		seen[id] = true
		site := max(0, slices.Index(r.Stack, r.CallSite))
		for i, f := range r.Stack {
			name := simple(f.Function)
			if known, ok := within[name]; i >= site || !ok || known {
				within[name] = i < site
			}
		}
	}
	delete(within, "")
	var names []string
	for _, name := range slices.Sorted(maps.Keys(within)) {
		if within[name] {
			names = append(names, regexp.QuoteMeta(name))
		}
	}
	return strings.Join(names, "|")
}

// simple is a function's name as pprof compares it: without the arguments of C++.
func simple(function string) string {
	function = strings.TrimPrefix(function, ".")
	for i := 0; i < len(function); i++ {
		if function[i] != '(' {
			continue
		}
		reserved := false
		for _, name := range []string{"(anonymous namespace)", "operator()"} {
			at := i - strings.IndexByte(name, '(')
			if at >= 0 && strings.HasPrefix(function[at:], name) {
				i, reserved = at+len(name)-1, true
				break
			}
		}
		if !reserved {
			return function[:i]
		}
	}
	return function
}
