package torch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// readSegments reads the state at the end.
func (r *replay) readSegments(segments []rawSegment) error {
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
			if b.state != inactive {
				piece.State, piece.Requested = alloc.Allocated, alloc.Bytes(b.requested)
				if err := r.addEnding(b, r.streamOf(s.stream)); err != nil {
					return err
				}
			}
			if b.state == pendingFree {
				piece.State = alloc.Pending
			}
			blocks = append(blocks, piece)
		}
		if err := r.addSegment(s, blocks); err != nil {
			return fmt.Errorf("%s: %w", s.description, err)
		}
	}
	r.orderEnds()
	return nil
}

// blocksIn returns how many blocks the segments have; of a file that names one list of them again
// and again, no more than it has room for.
func (r *replay) blocksIn(segments []rawSegment) (n int) {
	const least = 16 // bytes of text that a block takes
	for i := range segments {
		n += len(r.List(segments[i].blocks))
	}
	return int(min(int64(n), r.Bytes()/least))
}

// orderEnds orders the buffers at the end by address. Of two at one address the first of the
// file counts.
func (r *replay) orderEnds() {
	slices.SortStableFunc(r.ends, func(x, y ending) int { return cmp.Compare(uint64(x.address), uint64(y.address)) })
	r.ends = slices.CompactFunc(r.ends, func(x, y ending) bool { return x.address == y.address })
	for i := range r.ends {
		e := &r.ends[i]
		r.head.Live = r.head.Live.Add(snapshot.Tally{Count: 1, Bytes: alloc.Bytes(e.requested)})
		r.head.Allocated += alloc.Bytes(e.size)
	}
}

// endAt returns the buffer at an address at the end; nil if there is none.
func (r *replay) endAt(addr int64) *ending {
	i, ok := slices.BinarySearchFunc(r.ends, uint64(addr), func(e ending, addr uint64) int { return cmp.Compare(uint64(e.address), addr) })
	if !ok {
		return nil
	}
	return &r.ends[i]
}

func (r *replay) addSegment(s *rawSegment, blocks []alloc.Block) error {
	size := alloc.Bytes(s.total)
	if size <= 0 { // not said
		for _, b := range blocks {
			size += b.Size
		}
	}
	if size == 0 {
		return nil
	}
	pool := alloc.LargePool
	if s.kind == "small" {
		pool = alloc.SmallPool
	}
	whole, err := alloc.Segment{
		Ptr: alloc.Ptr(s.address), Size: size, Pool: pool, Stream: alloc.Stream(s.stream), Expandable: s.expandable, Private: s.pool.String(),
	}.With(blocks)
	r.segments = append(r.segments, whole)
	r.head.Reserved += size
	return err
}

func (r *replay) addEnding(b rawBlock, stream uint8) error {
	r.ends = append(r.ends, ending{
		address: b.address, size: b.size, requested: b.requested, block: b.value, stack: b.stack.id,
		entry: -1, stream: stream, pending: b.state == pendingFree,
	})
	return r.Use(endBytes)
}
