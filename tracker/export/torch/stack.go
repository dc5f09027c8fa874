package torch

import (
	"encoding/binary"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// callStack is a distinct call stack of a file.
type callStack struct {
	id     tables.StackID
	frames mem.Stack
	site   mem.Frame
}

// stackReader makes each stack and each frame once, however often the file has them.
type stackReader struct {
	table                *tables.StackTable
	data                 *plain.Data
	frames               []mem.Frame
	ranks                []callsite.Rank
	frameIDs             map[mem.Frame]uint32
	ofDict               map[plain.Value]uint32
	stacks               map[string]*callStack // by the IDs of their frames
	ofList               map[plain.Value]*callStack
	none                 *callStack
	name, filename, line plain.Key
	rule                 callsite.Rule
	id                   []byte
}

// maxFrames bounds a stack. PyTorch's have up to 150 frames; what is left out are
// the outermost.
const maxFrames = 1024

// The memory that frames take, in bytes, as plain.Data.Use counts it.
const (
	frameBytes    = 40  // for a frame in a stack
	newFrameBytes = 160 // with its places in tables
	newStackBytes = 160
)

func newStackReader(data *plain.Data) stackReader {
	return stackReader{
		table: new(tables.StackTable), data: data, none: new(callStack),
		frameIDs: make(map[mem.Frame]uint32), ofDict: make(map[plain.Value]uint32),
		stacks: make(map[string]*callStack), ofList: make(map[plain.Value]*callStack),
		name: data.Key("name"), filename: data.Key("filename"), line: data.Key("line"),
		rule: callsite.Rule{Go: callsite.GoLibraries},
	}
}

// stack returns the stack of a list of frames; the empty one of other values.
func (r *stackReader) stack(list plain.Value) (*callStack, error) {
	frames := r.data.List(list)
	if len(frames) == 0 {
		return r.none, nil
	}
	if s, ok := r.ofList[list]; ok {
		return s, nil
	}
	r.id = r.id[:0]
	for _, v := range frames[:min(len(frames), maxFrames)] {
		id, err := r.frame(v)
		if err != nil {
			return nil, err
		}
		r.id = binary.LittleEndian.AppendUint32(r.id, id)
	}
	s, ok := r.stacks[string(r.id)]
	if !ok {
		if err := r.data.Use(newStackBytes + int64(len(r.id))/4*(frameBytes+4)); err != nil {
			return nil, err
		}
		s = r.newStack()
		r.stacks[string(r.id)] = s
	}
	r.ofList[list] = s
	return s, r.data.Use(frameBytes)
}

func (r *stackReader) newStack() *callStack {
	s := &callStack{frames: make(mem.Stack, len(r.id)/4)}
	at := func(i int) uint32 { return binary.LittleEndian.Uint32(r.id[4*i:]) }
	for i := range s.frames {
		s.frames[i] = r.frames[at(i)]
	}
	if i, _ := callsite.Find(len(s.frames), func(i int) callsite.Rank { return r.ranks[at(i)] }); i >= 0 {
		s.site = s.frames[i]
	}
	s.id = r.table.Add(s.frames, s.site)
	return s
}

func (r *stackReader) frame(v plain.Value) (uint32, error) {
	if id, ok := r.ofDict[v]; ok {
		return id, nil
	}
	if v.Kind() != plain.Dict {
		return 0, fmt.Errorf("a frame is %v, want a dict", v.Kind())
	}
	name, _ := r.data.Get(v, r.name)
	filename, _ := r.data.Get(v, r.filename)
	value, _ := r.data.Get(v, r.line)
	line, _ := value.Int()
	f := mem.Frame{Function: bounded.Name(r.data.Str(name)), File: bounded.Name(r.data.Str(filename)), Line: int(line)}
	id, ok := r.frameIDs[f]
	if !ok {
		id = uint32(len(r.frames))
		r.frames = append(r.frames, f)
		r.ranks = append(r.ranks, r.rule.Rank(f.Function, f.File))
		r.frameIDs[f] = id
		// Frames may share their names, but each line of code gets a text with both.
		if err := r.data.Use(newFrameBytes + int64(len(f.Function)+len(f.File))); err != nil {
			return 0, err
		}
	}
	r.ofDict[v] = id
	return id, r.data.Use(frameBytes)
}
