package tablejson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// frameTable numbers frames, since the stacks of a file have most of their frames in common.
type frameTable struct {
	frames []mem.Frame
	index  tables.Numbers[mem.Frame]
}

func newFrameTable() *frameTable { return &frameTable{index: make(tables.Numbers[mem.Frame])} }

// appendStack appends the stack's JSON form, the numbers of its frames.
func (t *frameTable) appendStack(b []byte, s mem.Stack) []byte {
	b = append(b, '[')
	for i, f := range s {
		n, isNew := t.index.Of(f)
		if isNew {
			t.frames = append(t.frames, f)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, ']')
}

// write writes the table. stacks is the number of stacks before it: where only a sample of these
// was written, to guess a size, the table's size is multiplied accordingly.
func (t *frameTable) write(out *jsonstream.Writer, stacks int) {
	before := out.Size
	jsonstream.Table(out, "frames", t.frames, jsonstream.AsJSON(func(f mem.Frame) any { return f }))
	out.Size += (out.Size - before) * int64(out.Step(stacks)-1)
}

// stackJSON is a stack as it is in a file: the numbers of its frames or, in version 1, the frames
// themselves.
type stackJSON struct {
	numbers []int
	frames  mem.Stack
}

// UnmarshalJSON reads either form.
func (s *stackJSON) UnmarshalJSON(text []byte) error {
	*s = stackJSON{}
	if bytes.ContainsRune(text, '{') {
		return json.Unmarshal(text, &s.frames)
	}
	return json.Unmarshal(text, &s.numbers)
}

// read is UnmarshalJSON, within what the stream may take.
func (s *stackJSON) read(in *jsonstream.Reader, text []byte) error {
	if err := in.Use(int64(len(text)) * frameEntryBytes / 2); err != nil {
		return err
	}
	s.numbers = make([]int, 0, 1+bytes.Count(text, []byte(",")))
	if jsonstream.FlatList(text, func(value []byte, text bool) bool {
		s.numbers = append(s.numbers, 0)
		return !text && jsonstream.Number(value, &s.numbers[len(s.numbers)-1])
	}) {
		return nil
	}
	return json.Unmarshal(text, s)
}

// readFrame reads a frame. Names in it are indices into the file's names.
func readFrame(text []byte, f *mem.Frame, names jsonstream.Texts) error {
	err := jsonstream.UnmarshalFlat(text, f, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "function":
			f.Function = names.Of(value)
			return text
		case "file":
			f.File = names.Of(value)
			return text
		case "line":
			return !text && jsonstream.Number(value, &f.Line)
		}
		return false
	})
	f.Function, f.File = bounded.Name(f.Function), bounded.Name(f.File)
	return err
}

// load returns the stack. table has the frames that it refers to.
func (s stackJSON) load(table []mem.Frame) (mem.Stack, error) {
	if s.frames == nil {
		s.frames = make(mem.Stack, 0, len(s.numbers))
	}
	stack := s.frames
	for _, n := range s.numbers {
		if n < 0 || n >= len(table) {
			return nil, fmt.Errorf("frame %d of %d", n, len(table))
		}
		stack = append(stack, table[n])
	}
	return stack, nil
}

func loadStacks(in []stackJSON, table []mem.Frame) ([]mem.Stack, error) {
	stacks := make([]mem.Stack, len(in))
	for i, s := range in {
		var err error
		if stacks[i], err = s.load(table); err != nil {
			return nil, fmt.Errorf("stack %d: %w", i, err)
		}
	}
	return stacks, nil
}

// The memory of each entry of the tables, in bytes, as jsonstream.Reader.Use counts it.
const (
	stackEntryBytes = 96
	frameEntryBytes = 64
	siteEntryBytes  = 384
	allocationBytes = 96
	blockEntryBytes = 48
)
