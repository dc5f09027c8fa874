package pprof

import (
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// maxProfile bounds an unpacked profile: a small gzip can hold terabytes.
const maxProfile = 1 << 28

// Read reads a profile of live memory: one of this package, of JAX
// (jax.profiler.save_device_memory_profile), or a heap profile of Go. The usage has no peaks,
// because profiles have none. The error says that the file is torn, or that the profile is of
// something else.
func Read(r io.Reader) (*export.Usage, error) {
	u, err := read(r)
	if err != nil {
		return nil, fmt.Errorf("read pprof: %w", err)
	}
	return u, nil
}

func read(r io.Reader) (*export.Usage, error) {
	text, limit, err := unpack(r)
	if err != nil {
		return nil, err
	}
	if err := checkSize(text, limit); err != nil {
		return nil, err
	}
	p, err := profile.ParseUncompressed(text)
	if err != nil {
		return nil, err
	}
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	return usage(p, len(text))
}

// unpack returns the text, and how much memory the profile may take.
func unpack(in io.Reader) (text []byte, limit int64, err error) {
	r, err := bounded.NewReader(in, 0)
	if err != nil {
		return nil, 0, err
	}
	if _, err := r.Peek(2); err != nil {
		return nil, 0, fmt.Errorf("the file ends before the profile begins: %w", io.ErrUnexpectedEOF)
	}
	if text, err = bounded.ReadAll(r, maxProfile); err != nil {
		return nil, 0, bounded.Torn(err)
	}
	return text, r.Limits().Memory, nil
}

// columns holds, for each value of a Usage, its index in a sample; -1 means that it is missing.
type columns struct {
	liveCount, liveBytes, totalCount, totalBytes int
	hostCount, hostBytes                         int // live, in host memory
}

// usage returns the live memory of a profile, whose text had that many bytes.
func usage(p *profile.Profile, size int) (*export.Usage, error) {
	at, err := findColumns(p)
	if err != nil {
		return nil, err
	}
	u := &export.Usage{Origin: origin(p), Rows: make([]export.Row, 0, len(p.Sample))}
	if p.TimeNanos != 0 {
		u.Time = time.Unix(0, p.TimeNanos)
	}
	stacks, err := newStackReader(p, size)
	if err != nil {
		return nil, err
	}
	for _, s := range p.Sample {
		stack, err := stacks.read(s)
		if err != nil {
			return nil, err
		}
		row := export.Row{
			Stack: stack.frames, CallSite: stack.site,
			Kind: label(s, labelKind), DType: label(s, labelDType), Shape: label(s, labelShape),
			Section: label(s, labelSection), Device: label(s, labelDevice), Stream: label(s, labelStream), Memory: label(s, labelMemory),
			Totals: snapshot.Totals{Live: mem.Tally{Count: value(s, at.liveCount), Bytes: alloc.Bytes(value(s, at.liveBytes))}, Total: mem.Tally{Count: value(s, at.totalCount), Bytes: alloc.Bytes(value(s, at.totalBytes))}},
		}
		if row.Kind == executable {
			if row.Live.Bytes < 0 {
				continue // JAX does not know its size
			}
			row.Live.Count = 0
		}
		if row.Live.IsZero() && row.Total.IsZero() {
			row.Live = mem.Tally{Count: value(s, at.hostCount), Bytes: alloc.Bytes(value(s, at.hostBytes))}
		}
		if labels.OnHost(row.Memory) {
			u.Host = append(u.Host, row)
		} else {
			u.Rows = append(u.Rows, row)
		}
	}
	return u, nil
}

// executable is the kind that JAX gives to compiled programs. They take memory but are not buffers.
const executable = "executable"

// origin returns the fields on which all samples agree: the samples of a merged profile come from
// many processes.
func origin(p *profile.Profile) snapshot.Origin {
	o := labels.Origin(func(name string) (common string) {
		for i, s := range p.Sample {
			text := label(s, name)
			if i > 0 && text != common {
				return ""
			}
			common = text
		}
		return common
	})
	if o.Program == "" && len(p.Mapping) > 0 {
		if file := p.Mapping[0].File; file != "" && file != unnamed {
			o.Program = filepath.Base(file)
		}
	}
	return o
}

// findColumns finds the sample types by their names in heap profiles, or else by JAX's names.
func findColumns(p *profile.Profile) (columns, error) {
	find := func(names ...string) int {
		for _, name := range names {
			for i, t := range p.SampleType {
				if t.Type == name {
					return i
				}
			}
		}
		return -1
	}
	at := columns{find(inuseObjects, "allocations"), find(inuseSpace, "space"), find(allocObjects), find(allocSpace), find(hostObjects), find(hostSpace)}
	if at.liveBytes < 0 {
		var have []string
		for _, t := range p.SampleType {
			have = append(have, t.Type)
		}
		return at, fmt.Errorf("it is a profile of %q, not of live memory: want %s, or JAX's space", have, inuseSpace)
	}
	return at, nil
}

func label(s *profile.Sample, key string) string {
	if values := s.Label[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func value(s *profile.Sample, column int) int64 {
	if column < 0 {
		return 0
	}
	return s.Value[column]
}

// stackReader turns locations into frames, and samples' lists of them into
// stacks, once each.
type stackReader struct {
	frames map[*profile.Location]mem.Stack
	stacks map[string]stack // by the IDs of the locations
	id     []byte
	budget int // memory left for frames of stacks
	most   int
}

type stack struct {
	frames mem.Stack
	site   mem.Frame
}

// maxDepth bounds a stack, and unfolding the frames of all: a small file can name
// long locations many times.
const (
	maxDepth  = 1024
	unfolding = 8 // frames for each byte
)

func newStackReader(p *profile.Profile, size int) (*stackReader, error) {
	r := &stackReader{
		frames: make(map[*profile.Location]mem.Stack, len(p.Location)),
		stacks: make(map[string]stack),
		budget: unfolding * size, most: unfolding * size,
	}
	names := bounded.Base + bounded.PerByte*size // memory left for names: many lines can share a long name, and each prints it
	for _, l := range p.Location {
		var stack mem.Stack
		for _, line := range l.Line {
			f := mem.Frame{Line: int(line.Line)}
			if line.Function != nil {
				f.Function, f.File = bounded.Name(line.Function.Name), bounded.Name(line.Function.Filename)
			}
			stack = append(stack, f)
			if names -= len(f.Function) + len(f.File); names < 0 {
				return nil, fmt.Errorf("%w: its lines share long names, which take far more memory than the file", bounded.ErrTooLarge)
			}
		}
		if len(stack) == 0 {
			stack = mem.Stack{{Function: fmt.Sprintf("%#x", l.Address)}}
		}
		r.frames[l] = stack
	}
	return r, nil
}

func (r *stackReader) read(s *profile.Sample) (stack, error) {
	r.id = r.id[:0]
	for _, l := range s.Location {
		r.id = binary.AppendUvarint(r.id, l.ID)
	}
	known, ok := r.stacks[string(r.id)]
	if ok {
		return known, nil
	}
	var frames mem.Stack
	for _, l := range s.Location {
		frames = append(frames, r.frames[l]...)
		if len(frames) > maxDepth {
			frames = frames[:maxDepth:maxDepth]
			break
		}
	}
	if r.budget -= len(frames); r.budget < 0 {
		return stack{}, fmt.Errorf("its call stacks unfold to more than %d frames, more than a profile of that size has", r.most)
	}
	known = stack{frames, frames.CallSite()}
	r.stacks[string(r.id)] = known
	return known, nil
}
