package pprof

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// maxProfile bounds an unpacked profile: a small gzip can hold terabytes.
const maxProfile = 1 << 28

// Read reads a profile of live memory: of this package, of JAX
// (jax.profiler.save_device_memory_profile), and Go's heap profiles. The error
// says that the text is torn, or a profile of something else. Peaks are not
// in a profile.
func Read(r io.Reader) (*export.Usage, error) {
	u, err := read(r)
	if err != nil {
		return nil, fmt.Errorf("read pprof: %w", err)
	}
	return u, nil
}

func read(r io.Reader) (*export.Usage, error) {
	text, err := unpack(r)
	if err != nil {
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

func unpack(r io.Reader) ([]byte, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	if err != nil {
		return nil, fmt.Errorf("the file ends before the profile begins: %w", io.ErrUnexpectedEOF)
	}
	r = io.MultiReader(bytes.NewReader(head[:n]), r)
	var text []byte
	if head[0] == 0x1f && head[1] == 0x8b {
		r, err = gzip.NewReader(r)
	}
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(r, maxProfile+1))
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the file is torn: %w", err)
	case err != nil:
		return nil, err
	case len(text) > maxProfile:
		return nil, fmt.Errorf("the profile unpacks to more than %v", alloc.Bytes(maxProfile))
	}
	return text, nil
}

// columns are the places of the values that a Usage has in a sample; -1 is none.
type columns struct {
	liveCount, liveBytes, totalCount, totalBytes int
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
	stacks := newStackReader(p, size)
	for _, s := range p.Sample {
		stack, err := stacks.read(s)
		if err != nil {
			return nil, err
		}
		u.Rows = append(u.Rows, export.Row{
			Stack: stack, Site: stack.Site(),
			Kind: label(s, labelKind), DType: label(s, labelDType), Shape: label(s, labelShape),
			Section: label(s, labelSection), Device: label(s, labelDevice),
			Live:  tracker.Tally{Count: value(s, at.liveCount), Bytes: alloc.Bytes(value(s, at.liveBytes))},
			Total: tracker.Tally{Count: value(s, at.totalCount), Bytes: alloc.Bytes(value(s, at.totalBytes))},
		})
	}
	return u, nil
}

// origin returns what the samples agree on: those of a merged profile come from
// many processes.
func origin(p *profile.Profile) tracker.Origin {
	return export.OriginOf(func(name string) (common string) {
		for i, s := range p.Sample {
			text := label(s, name)
			if i > 0 && text != common {
				return ""
			}
			common = text
		}
		return common
	})
}

// findColumns knows the names of heap profiles and, second, those of JAX.
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
	at := columns{find(inuseObjects, "allocations"), find(inuseSpace, "space"), find(allocObjects), find(allocSpace)}
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
	frames map[*profile.Location]tracker.Stack
	stacks map[string]tracker.Stack // by the IDs of the locations
	id     []byte
	room   int // for frames of stacks
	most   int
}

// maxDepth bounds a stack, and unfolding the frames of all: a small file can name
// long locations many times.
const (
	maxDepth  = 1024
	unfolding = 8 // frames for each byte
)

func newStackReader(p *profile.Profile, size int) *stackReader {
	r := &stackReader{
		frames: make(map[*profile.Location]tracker.Stack, len(p.Location)),
		stacks: make(map[string]tracker.Stack),
		room:   unfolding * size, most: unfolding * size,
	}
	for _, l := range p.Location {
		var stack tracker.Stack
		for _, line := range l.Line {
			f := tracker.Frame{Line: int(line.Line)}
			if line.Function != nil {
				f.Function, f.File = line.Function.Name, line.Function.Filename
			}
			stack = append(stack, f)
		}
		if len(stack) == 0 {
			stack = tracker.Stack{{Function: fmt.Sprintf("%#x", l.Address)}}
		}
		r.frames[l] = stack
	}
	return r
}

func (r *stackReader) read(s *profile.Sample) (tracker.Stack, error) {
	r.id = r.id[:0]
	for _, l := range s.Location {
		r.id = binary.AppendUvarint(r.id, l.ID)
	}
	stack, ok := r.stacks[string(r.id)]
	if !ok {
		for _, l := range s.Location {
			stack = append(stack, r.frames[l]...)
			if len(stack) > maxDepth {
				stack = stack[:maxDepth:maxDepth]
				break
			}
		}
		if r.room -= len(stack); r.room < 0 {
			return nil, fmt.Errorf("its call stacks unfold to more than %d frames, more than a profile of that size has", r.most)
		}
		r.stacks[string(r.id)] = stack
	}
	return stack, nil
}
