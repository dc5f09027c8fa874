package torch

import (
	"fmt"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// stackReader makes each stack and each frame once, however often the file has them.
type stackReader struct {
	table                *tables.PackedStacks
	data                 *plain.Data
	ranks                []callsite.Rank // of the frames
	frameIDs             map[mem.Frame]uint32
	ofDict               []uint32         // by the number of a dict, one more than that of its frame; 0 if it was not read yet
	ofList               []tables.StackID // by the number of a list, see plain.Data.Same; 0 if it was not read yet
	name, filename, line plain.Key
	rule                 callsite.Rule
	numbers              []uint32
	taken                int64 // bytes, of everything that take counted
}

// maxFrames bounds a stack. PyTorch's have up to 150 frames; what is left out are
// the outermost.
const maxFrames = 1024

// The memory that frames take, in bytes, as plain.Data.Use counts it.
const (
	placeBytes    = 4   // of a frame in a stack
	newFrameBytes = 160 // with its places in tables
	newStackBytes = 100
)

func newStackReader(data *plain.Data) stackReader {
	return stackReader{
		table: new(tables.PackedStacks), data: data, frameIDs: make(map[mem.Frame]uint32),
		name: data.Key("name"), filename: data.Key("filename"), line: data.Key("line"),
		rule: callsite.Rule{Go: callsite.GoLibraries},
	}
}

// take counts memory as plain.Data.Use does, and keeps the sum.
func (r *stackReader) take(bytes int64) error {
	r.taken += bytes
	return r.data.Use(bytes)
}

// stack returns the stack of a list of frames; 0, the unknown one, of other values.
func (r *stackReader) stack(list plain.Value) (tables.StackID, error) {
	same, ok := r.data.Same(list)
	if !ok || r.data.Len(list) == 0 {
		return 0, nil
	}
	if same < len(r.ofList) && r.ofList[same] != 0 {
		return r.ofList[same], nil
	}
	r.numbers = r.numbers[:0]
	for i := range min(r.data.Len(list), maxFrames) {
		n, err := r.frame(r.data.Element(list, i))
		if err != nil {
			return 0, err
		}
		r.numbers = append(r.numbers, n)
	}
	id, isNew := r.table.Add(r.numbers, func() int {
		i, _ := callsite.Find(len(r.numbers), func(i int) callsite.Rank { return r.ranks[r.numbers[i]] })
		return i
	})
	if isNew {
		if err := r.take(newStackBytes + int64(len(r.numbers))*placeBytes); err != nil {
			return 0, err
		}
	}
	return id, setAt(r, &r.ofList, same, id)
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
		id = r.table.AddFrame(f)
		r.ranks = append(r.ranks, r.rule.Rank(f.Function, f.File))
		r.frameIDs[f] = id
		// Frames may share their names, but each line of code gets a text with both.
		if err := r.take(newFrameBytes + int64(len(f.Function)+len(f.File))); err != nil {
			return 0, err
		}
	}
	return id, setAt(r, &r.ofDict, int(number), id+1)
}

// setAt sets an element of a slice, which grows to have it.
func setAt[T any](r *stackReader, all *[]T, i int, v T) error {
	if n := len(*all); i >= n {
		if err := r.take(int64(i+1-n) * int64(unsafe.Sizeof(v))); err != nil {
			return err
		}
		*all = append(*all, make([]T, i+1-n)...)
	}
	(*all)[i] = v
	return nil
}
