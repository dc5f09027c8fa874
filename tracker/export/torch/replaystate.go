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
	for i := range segments {
		s := &segments[i]
		var blocks []alloc.Block
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
	slices.SortFunc(r.sorted, func(x, y *ending) int { return cmp.Compare(uint64(x.address), uint64(y.address)) })
	return nil
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
	if _, twice := r.ends[b.address]; twice {
		return nil
	}
	e := &ending{rawBlock: b, entry: -1, stream: stream}
	if e.about, e.known = r.ofBlock(&b); b.state == pendingFree {
		e.label = pendingLabel
	}
	r.ends[b.address] = e
	r.sorted = append(r.sorted, e)
	r.head.Live = r.head.Live.Add(snapshot.Tally{Count: 1, Bytes: alloc.Bytes(b.requested)})
	r.head.Allocated += alloc.Bytes(b.size)
	return r.Use(endBytes)
}
