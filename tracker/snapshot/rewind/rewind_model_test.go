package rewind_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// program is a model of a program: what is live and reserved now, the events that led to it, and what was there before each.
type program struct {
	*rand.Rand
	expandable bool

	live     map[alloc.Ptr]modelBuffer
	segments map[alloc.Ptr]alloc.Segment // without their blocks
	total    alloc.Bytes                 // of the segments
	history  tables.HistoryTables
	before   []modelState
	tensors  []*tables.Tensor
}

type modelBuffer struct {
	entry   tables.EventEntry // of the allocation
	seq     uint64
	pending bool
}

type modelState struct {
	live     map[alloc.Ptr]modelBuffer
	segments map[alloc.Ptr]alloc.Segment
	total    alloc.Bytes
}

const (
	modelUnit = 2 * alloc.MiB // every block has at least this size, so that no hole is an unsplit remainder
	modelSize = 16            // units of a segment
)

var modelStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newProgram(seed uint64) *program {
	p := &program{Rand: rand.New(rand.NewPCG(seed, 7)), live: make(map[alloc.Ptr]modelBuffer), segments: make(map[alloc.Ptr]alloc.Segment)}
	p.expandable = p.IntN(2) == 0
	stacks := new(tables.StackTable)
	for line := range 5 {
		frame := mem.Frame{Function: "main.step", File: "main.go", Line: line}
		stacks.Add(mem.Stack{frame, {Function: "main.main", File: "main.go", Line: 99}}, frame)
	}
	for i, memory := range []alloc.Memory{alloc.DeviceMemory, alloc.DeviceMemory, alloc.PinnedMemory} {
		p.tensors = append(p.tensors, &tables.Tensor{Kind: mem.Kind([]string{"Input", "Gradient", ""}[i]), Memory: memory, Each: 1000 + alloc.Bytes(i)})
	}
	p.history = tables.HistoryTables{
		Start: modelStart, Stacks: stacks, Sections: []string{"", "load", "step"}, Streams: []alloc.Stream{0, 17, 4},
	}
	if p.expandable {
		p.reserve(anchor)
	}
	for range 120 {
		p.step()
	}
	return p
}

// add adds an event, before which the program is as it is now.
func (p *program) add(e tables.EventEntry) (seq uint64) {
	seq = uint64(len(p.history.Events))
	e.Since = time.Duration(seq+1) * time.Second
	p.history.Events = append(p.history.Events, e)
	p.before = append(p.before, p.state())
	return seq
}

func (p *program) state() modelState {
	return modelState{maps.Clone(p.live), maps.Clone(p.segments), p.total}
}

func (p *program) step() {
	switch n := p.IntN(10); {
	case n == 0:
		p.reserve(p.IntN(6))
	case n == 1:
		p.release(p.IntN(6))
	case n < 6:
		p.allocate()
	case n == 6:
		p.register()
	default:
		p.free()
	}
}

// base returns where the n-th segment lies. Three expandable ones are neighbours, so that they join.
func (p *program) base(n int) alloc.Ptr {
	n *= 2
	if p.expandable {
		n = n/2 + n/2/3
	}
	return alloc.Ptr(0x1000_0000) + alloc.Ptr(n)*alloc.Ptr(modelSize*modelUnit)
}

// anchor is the number of an expandable segment that stays. Its neighbours are of its pool, which their events need not name.
const anchor = 1

func (p *program) reserve(n int) {
	at := p.base(n)
	if _, taken := p.segments[at]; taken {
		return
	}
	s := alloc.Segment{Ptr: at, Size: modelSize * modelUnit, Pool: "large", Expandable: p.expandable}
	switch {
	case p.expandable && n < 3:
		s.Pool, s.Private = "small", "(2, 1)"
	case !p.expandable:
		s.Stream = p.history.Streams[p.IntN(3)]
		s.Private = []string{"", "(1, 0)"}[p.IntN(2)]
		if p.IntN(2) == 0 {
			s.Size, s.Pool = modelUnit, "small"
		}
	}
	seq := p.add(tables.EventEntry{Action: mem.SegmentAllocated, Ptr: at, Allocated: s.Size, Stream: uint8(slices.Index(p.history.Streams, s.Stream))})
	p.namePool(seq, s)
	p.segments[at], p.total = s, p.total+s.Size
}

// namePool gives the event of a segment its private pool. Those of an anchor's neighbours may lack it, as before PyTorch 2.12.
func (p *program) namePool(seq uint64, s alloc.Segment) {
	if s.Private != "" && (!p.expandable || p.IntN(2) == 0) {
		p.history.Pools = append(p.history.Pools, tables.PoolEntry{Seq: seq, Name: s.Private})
	}
}

func (p *program) release(n int) {
	at := p.base(n)
	s, reserved := p.segments[at]
	if !reserved || p.expandable && n == anchor {
		return
	}
	for b := range p.live {
		if s.Ptr <= b && b < s.Ptr+alloc.Ptr(s.Size) {
			return
		}
	}
	seq := p.add(tables.EventEntry{Action: mem.SegmentFreed, Ptr: at, Allocated: s.Size, Stream: uint8(slices.Index(p.history.Streams, s.Stream))})
	p.namePool(seq, s)
	delete(p.segments, at)
	p.total -= s.Size
}

// allocate takes the first free unit of a segment.
func (p *program) allocate() {
	s, reserved := p.segments[p.base(p.IntN(6))]
	if !reserved {
		return
	}
	at := s.Ptr
	for ; at < s.Ptr+alloc.Ptr(s.Size); at += alloc.Ptr(modelUnit) {
		if _, taken := p.live[at]; !taken {
			p.enter(tables.EventEntry{Action: mem.Allocated, Ptr: at, Allocated: modelUnit, Tensor: p.tensors[p.IntN(2)]})
			return
		}
	}
}

// register enters memory of other code, before, behind and between the segments.
func (p *program) register() {
	at := []alloc.Ptr{0x1000, 0x2000, 0x7fff_0000_0000}[p.IntN(3)] + alloc.Ptr(p.IntN(2))*0x400
	if !p.expandable && p.IntN(2) == 0 {
		at = p.base(p.IntN(6)) + alloc.Ptr(modelSize*modelUnit) + 0x1000
	}
	if _, taken := p.live[at]; !taken {
		p.enter(tables.EventEntry{Action: mem.Registered, Ptr: at, Allocated: 512, Tensor: p.tensors[p.IntN(3)]})
	}
}

func (p *program) enter(e tables.EventEntry) {
	e.Stack, e.Section, e.Stream = tables.StackID(1+p.IntN(5)), uint16(p.IntN(3)), uint8(p.IntN(3))
	seq := p.add(e)
	e = p.history.Events[seq]
	p.live[e.Ptr] = modelBuffer{entry: e, seq: seq}
}

// free frees a buffer, whose memory may be pending then, or completes a free.
func (p *program) free() {
	if len(p.live) == 0 {
		return
	}
	at := slices.Sorted(maps.Keys(p.live))[p.IntN(len(p.live))]
	b := p.live[at]
	e := b.entry
	switch {
	case b.pending:
		e.Action, e.Tensor = mem.FreeCompleted, nil
	case e.Action == mem.Registered:
		e.Action = mem.Unregistered
	default:
		e.Action = mem.Freed
	}
	p.add(e)
	if b.pending || e.Action == mem.Unregistered || p.IntN(2) == 0 {
		delete(p.live, at)
		return
	}
	b.pending = true
	p.live[at] = b
}

// dump returns the program's dump at its end, with the events from first on.
func (p *program) dump(first uint64) *snapshot.Dump {
	end := p.state()
	s := &snapshot.Snapshot{
		Time: modelStart.Add(time.Hour), Device: "GPU", Ordinal: 3, UUID: "GPU-1", Origin: snapshot.Origin{PID: 7}, Settings: map[string]string{"a": "b"},
		Events: uint64(len(p.history.Events)), Segments: p.blocks(end, nil),
	}
	s.Reserved, s.DriverUsed, s.DriverTotal = p.total, 5, 1<<40
	lists := tables.Tables{Stacks: p.history.Stacks, Sections: p.history.Sections, Streams: p.history.Streams, Epoch: modelStart.Add(-time.Minute), Allocations: []tables.AllocationEntry{}}
	for _, at := range slices.Sorted(maps.Keys(end.live)) {
		b := end.live[at]
		if b.pending {
			continue
		}
		lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: b.entry.Stack, Section: uint32(b.entry.Section)}, Tensor: b.entry.Tensor, Live: 1, Stream: b.entry.Stream})
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{
			Site: int32(len(lists.Sites) - 1), Foreign: b.entry.Action == mem.Registered, Ptr: at, Allocated: b.entry.Allocated,
			Since: b.entry.Since + time.Minute, Seq: b.seq, Label: "kept",
		})
	}
	s.Tables = tables.Wrap(lists)
	h := p.history
	h.First, h.Events = first, h.Events[first:]
	return &snapshot.Dump{Snapshot: s, History: tables.WrapHistory(h)}
}

// blocks returns the segments with their blocks. A block whose free completes later has no known request.
func (p *program) blocks(of modelState, completes map[alloc.Ptr]bool) []alloc.Segment {
	all := []alloc.Segment{}
	for _, at := range slices.Sorted(maps.Keys(of.segments)) {
		s := of.segments[at]
		if last := len(all) - 1; p.expandable && last >= 0 && all[last].Ptr+alloc.Ptr(all[last].Size) == s.Ptr {
			all[last].Size += s.Size
		} else {
			all = append(all, s)
		}
	}
	for i := range all {
		s := &all[i]
		free := s.Ptr
		hole := func(to alloc.Ptr) {
			if to > free {
				s.Blocks = append(s.Blocks, alloc.Block{Ptr: free, Size: alloc.Bytes(to - free), State: alloc.Inactive})
			}
		}
		for _, at := range slices.Sorted(maps.Keys(of.live)) {
			b := of.live[at]
			if b.entry.Action == mem.Registered || at < s.Ptr || at >= s.Ptr+alloc.Ptr(s.Size) {
				continue
			}
			hole(at)
			block := alloc.Block{Ptr: at, Size: b.entry.Allocated, Requested: b.entry.Tensor.Each, State: alloc.Allocated}
			if b.pending {
				block.State = alloc.Pending
				if completes[at] {
					block.Requested = 0
				}
			}
			s.Blocks = append(s.Blocks, block)
			free = at + alloc.Ptr(b.entry.Allocated)
		}
		hole(s.Ptr + alloc.Ptr(s.Size))
	}
	return all
}

// later returns what happens from an event on to the buffers that are there before it: which are freed, and of which the free
// completes.
func (p *program) later(event uint64) (frees, completes map[alloc.Ptr]bool) {
	frees, completes = make(map[alloc.Ptr]bool), make(map[alloc.Ptr]bool)
	seen := make(map[alloc.Ptr]bool)
	for _, e := range p.history.Events[event:] {
		switch e.Action {
		case mem.Freed, mem.Unregistered:
			frees[e.Ptr] = frees[e.Ptr] || !seen[e.Ptr]
		case mem.FreeCompleted:
			completes[e.Ptr] = completes[e.Ptr] || !seen[e.Ptr]
		}
		seen[e.Ptr] = true
	}
	return frees, completes
}

// levels returns the amounts of a state.
func (of modelState) levels() snapshot.Levels {
	l := snapshot.Levels{Reserved: of.total, DriverUsed: -1, DriverTotal: 1 << 40, Memory: make(map[alloc.Memory]mem.Tally)}
	for _, b := range of.live {
		if b.pending {
			continue
		}
		one := mem.Tally{Count: 1, Bytes: b.entry.Tensor.Each}
		l.Memory[b.entry.Tensor.Memory] = l.Memory[b.entry.Tensor.Memory].Add(one)
		if b.entry.Tensor.Memory.OnHost() {
			l.HostReserved += b.entry.Allocated
			continue
		}
		l.Live, l.Allocated = l.Live.Add(one), l.Allocated+b.entry.Allocated
		if b.entry.Action == mem.Registered {
			l.Registered += b.entry.Allocated
		}
	}
	return l
}

// TestEveryStateIsThatOfTheProgram goes back through random programs, from their end to their beginning or to the first event
// that is kept. Before each event all is as it was in the program, or as the history can know it.
func TestEveryStateIsThatOfTheProgram(t *testing.T) {
	for seed := range uint64(60) {
		p := newProgram(seed)
		first := uint64(0)
		if seed%3 == 0 {
			first = 30
		}
		d := p.dump(first)
		events := make([]uint64, 0, len(p.before))
		for event := first; event < uint64(len(p.before)); event++ {
			events = append(events, event)
		}
		require.NoError(t, rewind.Each(d, events, func(got *snapshot.Snapshot) {
			want, event := p.before[got.Events], got.Events
			frees, completes := p.later(event)
			require.Equal(t, want.levels(), got.Levels, "seed %d, event %d", seed, event)
			require.Equal(t, p.blocks(want, completes), got.Segments, "seed %d, event %d", seed, event)
			require.Equal(t, p.allocations(want, event, first, frees), slices.SortedFunc(got.Allocations(), oldest), "seed %d, event %d", seed, event)
			require.True(t, slices.IsSortedFunc(slices.Collect(got.Allocations()), func(x, y snapshot.Allocation) int { return cmp.Compare(x.Seq, y.Seq) }))
			require.Equal(t, modelStart.Add(time.Duration(event+1)*time.Second), got.Time)
			s := d.Snapshot
			require.Equal(t, []any{s.Device, s.Ordinal, s.UUID, s.Origin, s.Settings}, []any{got.Device, got.Ordinal, got.UUID, got.Origin, got.Settings})
			require.Zero(t, got.Peak, "it is not known")
			var live, total int64
			for c := range got.CallSites() {
				live, total = live+c.Live.Count, total+c.Total.Count
			}
			require.Equal(t, []int64{got.Live.Count + got.Host().Count, live}, []int64{live, total}, "the call sites count all buffers")
		}))
	}
}

// allocations returns the live buffers. Of those that are freed later, the label is not known, nor when they were allocated
// if that was before the first event.
func (p *program) allocations(of modelState, event, first uint64, frees map[alloc.Ptr]bool) (all []snapshot.Allocation) {
	freedAt := func(at alloc.Ptr) time.Duration {
		for _, e := range p.history.Events[event:] {
			if e.Ptr == at && (e.Action == mem.Freed || e.Action == mem.Unregistered) {
				return e.Since
			}
		}
		return 0
	}
	for _, at := range slices.Sorted(maps.Keys(of.live)) {
		b, e := of.live[at], of.live[at].entry
		if b.pending {
			continue
		}
		a := snapshot.Allocation{
			Seq: b.seq, Time: modelStart.Add(e.Since), Ptr: at, Requested: e.Tensor.Each, Allocated: e.Allocated, Label: "kept",
			Group: snapshot.Group{Kind: e.Tensor.Kind, Memory: e.Tensor.Memory}, Registered: e.Action == mem.Registered,
			Place: snapshot.Place{
				Section: p.history.Sections[e.Section], Stream: p.history.Streams[e.Stream],
				Stack: p.history.Stacks.Stack(e.Stack), CallSite: p.history.Stacks.Site(e.Stack),
			},
		}
		if frees[at] {
			a.Label = ""
			if b.seq < first {
				a.Seq, a.Time = 0, modelStart.Add(freedAt(at))
			}
		}
		all = append(all, a)
	}
	slices.SortFunc(all, oldest)
	return all
}

// oldest orders buffers by their number. Those from before the first event have none.
func oldest(x, y snapshot.Allocation) int {
	return cmp.Or(cmp.Compare(x.Seq, y.Seq), cmp.Compare(x.Ptr, y.Ptr))
}
