package replay_test

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// program makes a history: a random program over real caches, one for each stream.
type program struct {
	t       testing.TB
	random  *rand.Rand
	dev     *counting.Device
	caches  []*cache.Cache
	events  []tables.EventEntry
	live    []held
	tensors map[alloc.Bytes]*tables.Tensor
	stacks  *tables.StackTable
	stack   tables.StackID
}

type held struct {
	ptr       alloc.Ptr
	requested alloc.Bytes
	allocated alloc.Bytes
	stream    uint8
	event     int
	stack     tables.StackID
}

func newProgram(t testing.TB, seed uint64, memory alloc.Bytes, conf cache.Config, streams int) *program {
	p := &program{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), dev: counting.New(memory),
		tensors: make(map[alloc.Bytes]*tables.Tensor), stacks: new(tables.StackTable),
	}
	line := mem.Frame{Function: "main.step", File: "main.go", Line: 7}
	p.stack = p.stacks.Add(mem.Stack{line}, line)
	for i := range streams {
		c := cachetest.NewCache(t, p.dev, conf)
		c.Locked().Notify(func(e cachelock.Event) {
			switch e.Action {
			case cachelock.SegmentAlloc, cachelock.SegmentMap:
				p.add(tables.EventEntry{Action: mem.SegmentAllocated, Ptr: e.Ptr, Allocated: e.Size, Stream: uint8(i)})
			case cachelock.SegmentFree, cachelock.SegmentUnmap:
				p.add(tables.EventEntry{Action: mem.SegmentFreed, Ptr: e.Ptr, Allocated: e.Size, Stream: uint8(i)})
			}
		}, nil)
		p.caches = append(p.caches, c)
	}
	return p
}

func (p *program) add(e tables.EventEntry) {
	e.Since = time.Duration(len(p.events)) * time.Microsecond
	p.events = append(p.events, e)
}

func (p *program) tensor(n alloc.Bytes) *tables.Tensor {
	if p.tensors[n] == nil {
		x, err := tables.Untyped("Activation", n)
		require.NoError(p.t, err)
		p.tensors[n] = &x
	}
	return p.tensors[n]
}

func (p *program) alloc(n alloc.Bytes) {
	stream := uint8(p.random.IntN(len(p.caches)))
	ptr, size, err := p.caches[stream].AllocOn(n, 0)
	if errors.Is(err, alloc.ErrOutOfMemory) {
		p.add(tables.EventEntry{Action: mem.OutOfMemory, Allocated: n, Stream: stream, Stack: p.stack})
		return
	}
	require.NoError(p.t, err)
	p.live = append(p.live, held{ptr, n, size, stream, len(p.events), p.stack})
	p.add(tables.EventEntry{Action: mem.Allocated, Ptr: ptr, Allocated: size, Tensor: p.tensor(n), Stream: stream, Stack: p.stack})
}

func (p *program) free(i int) {
	b := p.live[i]
	p.live = slices.Delete(p.live, i, i+1)
	p.add(tables.EventEntry{Action: mem.Freed, Ptr: b.ptr, Allocated: b.allocated, Tensor: p.tensor(b.requested), Stream: b.stream, Stack: p.stack})
	require.NoError(p.t, p.caches[b.stream].Free(b.ptr))
}

func (p *program) empty() {
	for _, c := range p.caches {
		_, err := c.Trim()
		require.NoError(p.t, err)
	}
}

// run does so many random things.
func (p *program) run(steps int) {
	for range steps {
		switch n := p.random.IntN(100); {
		case n < 52:
			p.alloc(p.size())
		case n < 99 && len(p.live) > 0:
			p.free(p.random.IntN(len(p.live)))
		case n == 99:
			p.empty()
		}
	}
}

// size is one of those that the pools treat differently.
func (p *program) size() alloc.Bytes {
	limits := []int{512, 8192, 1 << 20, 4 << 20, 12 << 20, 48 << 20}
	return alloc.Bytes(p.random.IntN(limits[p.random.IntN(len(limits))]))
}

// dump returns the history from event first on.
func (p *program) dump(first int) *snapshot.Dump {
	return &snapshot.Dump{Snapshot: p.snapshot(len(p.events)), History: p.from(first, p.events[first:])}
}

// snapshot returns the state now, when so many events have happened.
func (p *program) snapshot(events int) *snapshot.Snapshot {
	streams := make([]alloc.Stream, len(p.caches))
	s := &snapshot.Snapshot{Device: "made up", Events: uint64(events), Segments: p.segments()}
	lists := tables.Tables{Stacks: p.stacks, Sections: []string{""}, Allocations: []tables.AllocationEntry{}}
	for i := range streams {
		streams[i] = alloc.Stream(i)
	}
	lists.Streams = streams
	for _, b := range p.live {
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{Site: int32(len(lists.Sites)), Ptr: b.ptr, Allocated: b.allocated, Seq: uint64(b.event)})
		lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: b.stack}, Tensor: p.tensor(b.requested), Live: 1, Total: 1, Stream: b.stream})
		s.Live = s.Live.Add(mem.Tally{Count: 1, Bytes: b.requested})
		s.Allocated += b.allocated
	}
	for _, segment := range s.Segments {
		s.Reserved += segment.Size
	}
	*tables.Of(&s.Tables) = lists
	return s
}

func (p *program) segments() (all []alloc.Segment) {
	for i, c := range p.caches {
		for s := range c.Segments() {
			s.Stream = alloc.Stream(i)
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b alloc.Segment) int { return cmp.Compare(a.Ptr, b.Ptr) })
	return all
}

// from returns events as a history that begins with the event of a number.
func (p *program) from(first int, events []tables.EventEntry) snapshot.History {
	streams := make([]alloc.Stream, len(p.caches))
	for i := range streams {
		streams[i] = alloc.Stream(i)
	}
	return tables.WrapHistory(tables.HistoryTables{First: uint64(first), Events: events, Stacks: p.stacks, Sections: []string{""}, Streams: streams})
}

// at has the next requests come from a line of code.
func (p *program) at(function string, line int) mem.Frame {
	f := mem.Frame{Function: function, File: "main.go", Line: line}
	p.stack = p.stacks.Add(mem.Stack{f}, f)
	return f
}
