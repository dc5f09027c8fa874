package bands_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// life is an allocation of the model.
type life struct {
	born, died uint32 // moments; bands.Forever if it is live at the end
	bytes      int64
	ptr        alloc.Ptr
	line, kind int
}

func (l life) liveAt(m uint32) bool { return l.born <= m && m < l.died }

// model is a random history, as a plain list of its allocations, oldest first.
type model struct {
	dump  *snapshot.Dump
	lives []life
	host  []life // of the host's memory
}

// epoch is the time of the first event of a model.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const modelLines = 7

// newModel makes a history of a number of events, of buffers of random sizes and lifetimes. A part of the buffers is from
// before the history.
func newModel(seed uint64, events int) *model {
	r := rand.New(rand.NewPCG(seed, 1))
	stacks := new(tables.StackTable)
	for line := range modelLines {
		site := mem.Frame{Function: "main.step", File: "/src/main.go", Line: 10 + line}
		stacks.Add(mem.Stack{{Function: "lib.empty", File: "/lib/alloc.go", Line: 1}, site, {Function: "main.main", File: "/src/main.go", Line: 1 + line%2}}, site)
	}
	var tensors []*tables.Tensor
	for i := range 40 {
		t := &tables.Tensor{Kind: mem.Kinds()[i%3], Memory: alloc.DeviceMemory, Each: alloc.Bytes(r.IntN(1 << r.IntN(20)))}
		if i%10 == 9 {
			t.Memory = alloc.PinnedMemory
		}
		tensors = append(tensors, t)
	}
	past := tables.HistoryTables{Start: epoch, First: 1000, Stacks: stacks, Sections: []string{""}}
	lists := tables.Tables{Stacks: stacks, Sections: []string{""}, Epoch: epoch}
	type buffer struct {
		tensor *tables.Tensor
		stack  tables.StackID
		life   *life
		old    bool
	}
	var live, kept []buffer
	var all, host []*life
	next := alloc.Ptr(0x1000)
	make1 := func(moment uint32, old bool) buffer {
		t := tensors[r.IntN(len(tensors))]
		b := buffer{t, tables.StackID(1 + r.IntN(modelLines)), &life{moment, bands.Forever, int64(t.Each), next, 0, 0}, old}
		b.life.line, b.life.kind = int(b.stack)-1, slices.Index(mem.Kinds(), t.Kind)
		next += 1 << 21
		if t.Memory.OnHost() {
			host = append(host, b.life)
		} else {
			all = append(all, b.life)
		}
		return b
	}
	for range r.IntN(20) {
		live = append(live, make1(0, true))
	}
	now := time.Duration(0)
	for i := range events {
		moment := uint32(i) + 1
		now += time.Duration(r.IntN(5)) * time.Millisecond
		e := tables.EventEntry{Since: now}
		switch n := r.IntN(10); {
		case n == 0:
			e.Action = mem.Marked
		case n < 6 || len(live) == 0:
			b := make1(moment, false)
			live = append(live, b)
			e.Action, e.Ptr, e.Tensor, e.Stack, e.Allocated = mem.Allocated, b.life.ptr, b.tensor, b.stack, b.tensor.Each
		default:
			at := r.IntN(len(live))
			if r.IntN(2) == 0 {
				at = len(live) - 1
			}
			b := live[at]
			live = slices.Delete(live, at, at+1)
			b.life.died = moment
			e.Action, e.Ptr, e.Tensor, e.Stack, e.Allocated = mem.Freed, b.life.ptr, b.tensor, b.stack, b.tensor.Each
		}
		past.Events = append(past.Events, e)
	}
	m := new(model)
	levels := snapshot.Levels{DriverUsed: -1, DriverTotal: -1}
	kept = live
	slices.SortFunc(kept, func(a, b buffer) int { return int(a.life.born) - int(b.life.born) })
	for i, b := range kept {
		seq := past.First + uint64(b.life.born) - 1
		if b.old {
			seq = uint64(i)
		}
		lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: b.stack}, Tensor: b.tensor, Live: 1})
		lists.Allocations = append(lists.Allocations, tables.AllocationEntry{Site: int32(len(lists.Sites) - 1), Ptr: b.life.ptr, Allocated: b.tensor.Each, Seq: seq})
		if !b.tensor.Memory.OnHost() {
			levels.Live = levels.Live.Add(b.tensor.Tally(1))
			levels.Allocated += b.tensor.Each
		}
	}
	m.lives, m.host = inOrder(all), inOrder(host)
	m.dump = &snapshot.Dump{
		Snapshot: &snapshot.Snapshot{Time: epoch.Add(now + time.Second), Device: "GPU", Levels: levels, Events: past.First + uint64(events), Tables: tables.Wrap(lists)},
		History:  tables.WrapHistory(past),
	}
	return m
}

// inOrder sorts allocations as an index does: those from before the history by when they ended, latest first.
func inOrder(all []*life) (out []life) {
	slices.SortStableFunc(all, func(a, b *life) int {
		if a.born != b.born {
			return int(a.born) - int(b.born)
		}
		if a.born == 0 && a.died != b.died {
			if a.died > b.died {
				return -1
			}
			return 1
		}
		return 0
	})
	for _, l := range all {
		out = append(out, *l)
	}
	return out
}

// levelOf is the naive sum.
func levelOf(lives []life, m uint32) (sum int64) {
	for _, l := range lives {
		if l.liveAt(m) {
			sum += l.bytes
		}
	}
	return sum
}
