package torch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// readSegments reads the state at the end.
func (r *rebuilder) readSegments(segments []rawSegment) error {
	r.ends = make([]ending, 0, r.blocksIn(segments))
	for i := range segments {
		s := &segments[i]
		blocks := make([]alloc.Block, 0, r.blocksIn(segments[i:i+1]))
		for b, err := range r.blocksOf(s) {
			if err == nil {
				err = r.Use(blockBytes)
			}
			if err != nil {
				return err
			}
			piece := alloc.Block{Ptr: alloc.Ptr(b.address), Size: alloc.Bytes(b.size), State: alloc.Inactive}
			switch b.state {
			case allocated:
				piece.State, piece.Requested = alloc.Allocated, alloc.Bytes(b.requested)
			case pendingFree:
				piece.State, piece.Requested = alloc.Pending, alloc.Bytes(b.requested)
			}
			blocks = append(blocks, piece)
			if b.state != inactive {
				err = r.addEnding(&blocks[len(blocks)-1], &b, r.streamOf(s.stream))
			}
			if err != nil {
				return err
			}
		}
		r.addSegment(s, blocks)
	}
	if r.ordinal == r.host {
		if err := r.readHost(); err != nil {
			return err
		}
	}
	r.orderEnds()
	return nil
}

// blocksIn returns how many blocks the segments have.
func (r *rebuilder) blocksIn(segments []rawSegment) (n int) {
	for i := range segments {
		n += len(r.List(segments[i].blocks))
	}
	return r.atMost(n)
}

// orderEnds orders the buffers at the end by address. Of two at one address the first of the
// file counts.
func (r *rebuilder) orderEnds() {
	slices.SortStableFunc(r.ends, func(x, y ending) int { return cmp.Compare(x.Ptr, y.Ptr) })
	r.ends = slices.CompactFunc(r.ends, func(x, y ending) bool { return x.Ptr == y.Ptr })
	for i := range r.ends {
		e := &r.ends[i]
		if e.host {
			r.at.HostReserved += e.Size
			continue
		}
		r.at.Live = r.at.Live.Add(mem.Tally{Count: 1, Bytes: e.Requested})
		r.at.Allocated += e.Size
	}
}

// endAt returns the buffer that is at an address at the end, or nil.
func (r *rebuilder) endAt(addr int64) *ending {
	i, ok := slices.BinarySearchFunc(r.ends, alloc.Ptr(addr), func(e ending, addr alloc.Ptr) int { return cmp.Compare(e.Ptr, addr) })
	if !ok {
		return nil
	}
	return &r.ends[i]
}

func (r *rebuilder) addSegment(s *rawSegment, blocks []alloc.Block) {
	size := alloc.Bytes(s.total)
	if size <= 0 { // not said
		for _, b := range blocks {
			size += b.Size
		}
	}
	if size == 0 {
		return
	}
	pool := "large"
	if s.kind == "small" {
		pool = "small"
	}
	whole := alloc.Segment{
		Ptr: alloc.Ptr(s.address), Size: size, Pool: pool, Stream: alloc.Stream(s.stream), Expandable: s.expandable, Private: s.pool.String(),
		Blocks: blocks,
	}
	r.at.Reserved += size
	if whole.Check() != nil {
		r.broken++ // its buffers are known all the same
		return
	}
	r.segments = append(r.segments, whole)
}

// Since version 2.15, PyTorch can also record the pinned memory of its host allocator
// (_record_memory_history(record_pinned_host_memory=True)): "host_segments" has the blocks, which
// are never split, and "host_traces" the events. The file gives this memory to no device. Here it
// goes to the device with the largest segments, as alloc.PinnedMemory, which counts in none of the
// device's totals.

// readHost reads the buffers in the host's memory at the end.
func (r *rebuilder) readHost() error {
	i := 0
	for v, err := range r.dicts(r.hostSegments, "host_segments") {
		if err == nil {
			err = r.Use(blockBytes)
		}
		if err == nil {
			err = r.hostSegment(v)
		}
		if err != nil {
			return fmt.Errorf("host segment %d: %w", i, err)
		}
		i++
	}
	return nil
}

// hostSegment reads a block of host memory. PyTorch writes it as a segment that either has a state
// itself or has one block.
func (r *rebuilder) hostSegment(v plain.Value) error {
	if _, ok := r.Get(v, r.key.state); !ok {
		blocks, _ := r.Get(v, r.key.blocks)
		for inner, err := range r.dicts(blocks, "blocks") {
			if err == nil {
				err = r.hostBlock(inner)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return r.hostBlock(v)
}

func (r *rebuilder) hostBlock(v plain.Value) error {
	address, err := r.need(v, r.key.address, "address")
	if err != nil {
		return err
	}
	size, ok := r.integerOK(v, r.key.size)
	if !ok {
		size, err = r.need(v, r.key.total, "total_size")
	}
	if err != nil {
		return err
	}
	if err := r.amount(size, "size"); err != nil {
		return err
	}
	b := rawBlock{address: address, size: size, value: v}
	if b.stack, err = r.stackAt(v, r.key.frames); err != nil {
		return err
	}
	piece := &alloc.Block{Ptr: alloc.Ptr(address), Size: alloc.Bytes(size), Requested: alloc.Bytes(size)}
	switch r.text(v, r.key.state) {
	case "active_allocated":
		piece.State = alloc.Allocated
	case "active_pending_free", "active_awaiting_free":
		piece.State = alloc.Pending
	default:
		return nil
	}
	if err := r.addEnding(piece, &b, 0); err != nil {
		return err
	}
	r.ends[len(r.ends)-1].host = true
	return nil
}

func (r *rebuilder) addEnding(piece *alloc.Block, b *rawBlock, stream uint8) error {
	r.ends = append(r.ends, ending{Block: piece, value: b.value, stack: b.stack.id, entry: -1, stream: stream})
	return r.Use(endBytes)
}

// label returns the name of a buffer at the end: the label that Write gave it, the
// user_metadata and compile_context of its allocation, or that it is freed and still used.
func (r *rebuilder) label(e *ending) (string, error) {
	if e.pending() {
		return pendingLabel, nil
	}
	if label := r.text(e.value, r.key.label); label != "" || e.entry < 0 {
		return label, nil
	}
	note := r.labels[int(e.entry)]
	label := r.metadata(note.metadata)
	if note.compile != "" {
		compile := "compile_context=" + note.compile
		if label != "" {
			compile = label + ", " + compile
		}
		label = cut(compile)
	}
	return label, r.Use(int64(len(label)))
}

const (
	maxLabel  = 256 // bytes
	maxFields = 8
)

// metadata prints a user_metadata, which is a text or a dict, as "step=3, phase=forward".
func (r *rebuilder) metadata(v plain.Value) string {
	if v.Kind() != plain.Dict {
		return cut(r.word(v))
	}
	var fields []string
	for name, value := range r.Each(v) {
		if len(fields) == maxFields {
			break
		}
		fields = append(fields, cut(name)+"="+cut(r.word(value)))
	}
	return cut(strings.Join(fields, ", "))
}

// cut bounds a label. A character that would be cut in two is left out.
func cut(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	return strings.ToValidUTF8(s[:maxLabel], "")
}
