package torch

import (
	"encoding/binary"
	"fmt"
	"unsafe"

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
	ofDict               []uint32              // by the number of their dicts, one more than the ID of the frame; 0 if it was not read yet
	stacks               map[string]*callStack // by the IDs of their frames
	ofList               []*callStack          // by the number of their lists: see plain.Data.Same
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
		frameIDs: make(map[mem.Frame]uint32),
		stacks:   make(map[string]*callStack),
		name:     data.Key("name"), filename: data.Key("filename"), line: data.Key("line"),
		rule: callsite.Rule{Go: callsite.GoLibraries},
	}
}

// stack returns the stack of a list of frames; the empty one of other values.
func (r *stackReader) stack(list plain.Value) (*callStack, error) {
	same, ok := r.data.Same(list)
	if !ok || r.data.Len(list) == 0 {
		return r.none, nil
	}
	if same < len(r.ofList) && r.ofList[same] != nil {
		return r.ofList[same], nil
	}
	frames := r.data.List(list)
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
	return s, setAt(r, &r.ofList, same, s)
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
	number, ok := v.Number()
	if !ok {
		return 0, fmt.Errorf("a frame is %v, want a dict", v.Kind())
	}
	if number < int64(len(r.ofDict)) && r.ofDict[number] != 0 {
		return r.ofDict[number] - 1, nil
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
	return id, setAt(r, &r.ofDict, int(number), id+1)
}

// setAt sets an element of a slice, which grows to have it.
func setAt[T any](r *stackReader, all *[]T, i int, v T) error {
	if n := len(*all); i >= n {
		if err := r.data.Use(int64(i+1-n) * int64(unsafe.Sizeof(v))); err != nil {
			return err
		}
		*all = append(*all, make([]T, i+1-n)...)
	}
	(*all)[i] = v
	return nil
}
