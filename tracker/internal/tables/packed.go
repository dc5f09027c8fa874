package tables

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// PackedStacks is the Stacks of a source with many long stacks, such as a recording of Python code: it keeps each frame
// once, and 4 bytes for each place of a frame in a stack. A mem.Stack is made when it is first asked for. The zero value is
// empty. Adding is for one goroutine at a time, before others read.
type PackedStacks struct {
	frames []mem.Frame
	stacks []packedStack // the ID is the index plus one
	ids    []uint32      // the frames of many stacks, in one slice as far as they fit
	same   map[uint64]StackID
	seed   maphash.Seed
}

type packedStack struct {
	frames []uint32
	site   int32                     // the index of the call site in frames; -1 if there is none
	made   atomic.Pointer[mem.Stack] // nil until it is asked for
}

// AddFrame adds a frame and returns its number. No frame is added twice.
func (t *PackedStacks) AddFrame(f mem.Frame) uint32 {
	t.frames = append(t.frames, f)
	return uint32(len(t.frames) - 1)
}

// Frames returns the number of frames.
func (t *PackedStacks) Frames() int { return len(t.frames) }

// Add returns the stack of frames with these numbers, innermost first. It is the same for the same numbers; isNew says
// that there was none. site finds the call site of a new one, an index or -1.
func (t *PackedStacks) Add(frames []uint32, site func() int) (id StackID, isNew bool) {
	if t.same == nil {
		t.same, t.seed = make(map[uint64]StackID), maphash.MakeSeed()
	}
	h := maphash.Comparable(t.seed, len(frames))
	for _, n := range frames {
		h = (h ^ uint64(n)) * 0x9E3779B97F4A7C15
		h ^= h >> 32
	}
	for {
		id, ok := t.same[h]
		if !ok {
			break
		}
		if slices.Equal(t.stacks[id-1].frames, frames) {
			return id, false
		}
		h++ // another stack has the hash
	}
	t.stacks = append(t.stacks, packedStack{frames: t.keep(frames), site: int32(site())})
	id = StackID(len(t.stacks))
	t.same[h] = id
	return id, true
}

// keep copies numbers to where many are kept together.
func (t *PackedStacks) keep(frames []uint32) []uint32 {
	const together = 1 << 14
	if len(frames) > cap(t.ids)-len(t.ids) {
		t.ids = make([]uint32, 0, max(together, len(frames)))
	}
	from := len(t.ids)
	t.ids = append(t.ids, frames...)
	return t.ids[from:len(t.ids):len(t.ids)]
}

// Len returns the number of stacks: the largest ID.
func (t *PackedStacks) Len() int { return len(t.stacks) }

// Stack implements Stacks.
func (t *PackedStacks) Stack(id StackID) mem.Stack {
	if id == 0 {
		return nil
	}
	packed := &t.stacks[id-1]
	if made := packed.made.Load(); made != nil {
		return *made
	}
	stack := make(mem.Stack, len(packed.frames))
	for i, n := range packed.frames {
		stack[i] = t.frames[n]
	}
	if !packed.made.CompareAndSwap(nil, &stack) { // two goroutines asked for it: both get the same
		return *packed.made.Load()
	}
	return stack
}

// Site implements Stacks.
func (t *PackedStacks) Site(id StackID) mem.Frame {
	if id == 0 {
		return mem.Frame{}
	}
	packed := &t.stacks[id-1]
	if packed.site < 0 {
		return mem.Frame{}
	}
	return t.frames[packed.frames[packed.site]]
}

// Path returns the user's calls as StackTable.Path does.
func (t *PackedStacks) Path(id StackID) mem.Path {
	p := t.Stack(id).Path()
	return p[max(0, slices.Index(p, t.Site(id))):]
}

// Compare orders stacks frame by frame, innermost first, as CompareFrames orders frames.
func (t *PackedStacks) Compare(a, b StackID) int {
	if a == b {
		return 0
	}
	x, y := t.numbers(a), t.numbers(b)
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return CompareFrames(t.frames[x[i]], t.frames[y[i]])
		}
	}
	return cmp.Compare(len(x), len(y))
}

func (t *PackedStacks) numbers(id StackID) []uint32 {
	if id == 0 {
		return nil
	}
	return t.stacks[id-1].frames
}
