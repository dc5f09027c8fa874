package torch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// block is a live buffer, as small as it can be kept.
type block struct {
	addr            alloc.Ptr
	size, requested alloc.Bytes
	site            int // index in blocks.sites
	stream          alloc.Stream
	pending         bool // freed, but work on another stream may still use it
	label           string
}

// blocks are the live buffers by address. What many of them share is kept once.
type blocks struct {
	sorted []block
	sites  []site
}

type site struct {
	stack mem.Stack
	group group
	shape alloc.Shape
}

// liveBlocks returns the blocks of live buffers and the pending blocks. For a pending block the
// event that freed it may be known.
func liveBlocks(s *snapshot.Snapshot, frees map[alloc.Ptr]snapshot.Event) blocks {
	type key struct {
		stack lines.StackID
		group group
	}
	b := blocks{sorted: make([]block, 0, max(0, s.Live.Count))}
	index := make(map[key]int)
	siteOf := func(stack mem.Stack, g group, shape alloc.Shape) int {
		k := key{lines.Identify(stack), g}
		i, ok := index[k]
		if !ok {
			i = len(b.sites)
			index[k] = i
			b.sites = append(b.sites, site{stack, g, shape})
		}
		return i
	}
	pending := pendingIn(s)
	for a := range s.Allocations() {
		if a.Memory.OnHost() {
			continue
		}
		at := siteOf(a.Stack, groupOf(a.Kind, a.DType, a.Memory, a.Shape, a.Section), a.Shape)
		_, waits := pending[a.Ptr]
		b.sorted = append(b.sorted, block{address(a.Ptr), a.Allocated, a.Requested, at, a.Stream, waits, a.Label})
		delete(pending, a.Ptr)
	}
	for p, x := range pending {
		e := frees[p]
		at := siteOf(e.Stack, groupOf(e.Kind, e.DType, e.Memory, e.Shape, e.Section), e.Shape)
		b.sorted = append(b.sorted, block{address(p), x.Size, x.Requested, at, x.stream, true, pendingLabel})
	}
	slices.SortFunc(b.sorted, func(x, y block) int { return cmp.Compare(x.addr, y.addr) })
	return b
}

// pendingBlock is a block that is freed, but may still be in use.
type pendingBlock struct {
	alloc.Block
	stream alloc.Stream
}

// pendingIn returns the pending blocks by address.
func pendingIn(s *snapshot.Snapshot) map[alloc.Ptr]pendingBlock {
	pending := make(map[alloc.Ptr]pendingBlock)
	for _, segment := range s.Segments {
		for _, b := range segment.Blocks {
			if b.State == alloc.Pending {
				pending[b.Ptr] = pendingBlock{b, segment.Stream}
			}
		}
	}
	return pending
}

// streamNumber keeps a stream's handle below 2^53, as address does for addresses.
func streamNumber(s alloc.Stream) int64 { return int64(address(alloc.Ptr(s))) }

// segments writes the segments at the ends of the histories, each with the blocks
// that tile it.
func (w *writer) segments(parts []*part) {
	w.name("segments")
	l := w.beginList()
	for _, w.part = range parts {
		w.segmentsOf(l)
	}
	l.end()
}

// segmentsOf writes the segments of a device.
func (w *writer) segmentsOf(l *list) {
	for _, b := range w.live.sorted {
		if w.open.At(b.addr) == nil {
			w.open.Insert(walk.Span{Ptr: b.addr, Size: b.size, Pool: "large", Stream: b.stream, Own: true})
		}
	}
	for i := range w.dump.Snapshot.Segments {
		s := spanOf(&w.dump.Snapshot.Segments[i])
		if s.Expandable {
			w.open.Join(s)
		}
		if known := w.open.At(s.Ptr); known != nil && known.Ptr == s.Ptr {
			known.Pool, known.Private = s.Pool, s.Private // which events do not tell
		}
	}
	rest := w.live.sorted
	var tiles []block
	for s := range w.open.All {
		first, _ := slices.BinarySearchFunc(rest, s.Ptr, func(b block, addr alloc.Ptr) int { return cmp.Compare(b.addr, addr) })
		last, _ := slices.BinarySearchFunc(rest, s.End(), func(b block, addr alloc.Ptr) int { return cmp.Compare(b.addr, addr) })
		l.next()
		tiles = tile(tiles[:0], s, rest[first:last])
		w.segment(s, tiles, w.live.sites)
		rest = rest[last:]
	}
}

// tile appends the blocks that lie in the segment, cut to it. It skips a block that lies within
// another.
func tile(out []block, s *walk.Span, in []block) []block {
	at := s.Ptr
	for _, b := range in {
		b.size = min(b.size, alloc.Bytes(s.End()-b.addr))
		if b.addr < at || b.size <= 0 {
			continue
		}
		b.requested = min(b.requested, b.size)
		out = append(out, b)
		at = b.addr + alloc.Ptr(b.size)
	}
	return out
}

func (w *writer) segment(s *walk.Span, in []block, sites []site) {
	var size, active, requested alloc.Bytes
	for _, b := range in {
		active += b.size
		requested += b.requested
		if !b.pending {
			size += b.size
		}
	}
	w.beginDict()
	w.intItem("device", int64(w.dump.Snapshot.Ordinal))
	w.intItem("address", int64(s.Ptr))
	w.intItem("total_size", int64(s.Size))
	w.intItem("allocated_size", int64(size))
	w.intItem("active_size", int64(active))
	w.intItem("requested_size", int64(requested))
	w.intItem("stream", streamNumber(s.Stream))
	w.nameItem("segment_type", s.Pool)
	w.name("segment_pool_id")
	w.pool(s.Private)
	w.name("is_expandable")
	w.bool(s.Expandable)
	w.name("frames")
	w.stack(nil)
	w.name("blocks")
	l := w.beginList()
	at := s.Ptr
	for _, b := range in {
		w.inactive(l, at, b.addr)
		l.next()
		w.block(b, sites[b.site])
		at = b.addr + alloc.Ptr(b.size)
	}
	w.inactive(l, at, s.End())
	l.end()
	w.endDict()
}

// inactive writes what lies between two blocks.
func (w *writer) inactive(l *list, from, to alloc.Ptr) {
	if from == to {
		return
	}
	l.next()
	w.beginDict()
	w.intItem("address", int64(from))
	w.intItem("size", int64(to-from))
	w.intItem("requested_size", 0)
	w.nameItem("state", "inactive")
	w.name("frames")
	w.stack(nil)
	w.endDict()
}

func (w *writer) block(b block, s site) {
	w.beginDict()
	w.intItem("address", int64(b.addr))
	w.intItem("size", int64(b.size))
	w.intItem("requested_size", int64(b.requested))
	w.nameItem("state", map[bool]string{false: "active_allocated", true: "active_pending_free"}[b.pending])
	w.name("frames")
	w.stack(s.stack)
	w.name("gpumemtrack")
	w.group(s)
	if b.label != "" {
		w.name("label")
		w.text(b.label)
	}
	w.endDict()
}

// group writes, for Read, the fields that PyTorch's own snapshots do not have.
func (w *writer) group(s site) {
	if m, ok := w.groups[s.group]; ok {
		w.get(m)
		return
	}
	w.op(opEmptyDict)
	if len(w.groups) < maxGroups {
		w.groups[s.group] = w.memoize()
	}
	w.op(opMark)
	w.nameItem("kind", s.group.kind.String())
	if s.group.dtype.Bits() > 0 {
		w.nameItem("dtype", s.group.dtype.String())
		w.name("shape")
		w.text(s.shape.String())
	}
	w.nameItem("section", s.group.section)
	if s.group.memory != w.memory {
		w.nameItem("memory", s.group.memory.String())
	}
	w.endDict()
}

// poolID names a private pool; the zero one is the default pool.
type poolID [2]int64

// String is the name of alloc.Segment.Private: "0,1", or "" of the default pool.
func (p poolID) String() string {
	if p == (poolID{}) {
		return ""
	}
	return fmt.Sprintf("%d,%d", p[0], p[1])
}

// parsePool reads what String wrote. Any other text stands for the default pool.
func parsePool(text string) (p poolID) {
	if n, _ := fmt.Sscanf(text, "%d,%d", &p[0], &p[1]); n != 2 {
		return poolID{}
	}
	return p
}

// pool writes the number of a private pool.
func (w *writer) pool(private string) {
	pool := parsePool(private)
	w.int(pool[0])
	w.int(pool[1])
	w.op(opTuple2)
}
