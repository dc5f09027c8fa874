package rewind_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// before returns the segments before the first event of a dump.
func before(t *testing.T, d *snapshot.Dump) []alloc.Segment {
	s, err := rewind.At(d, 10)
	require.NoError(t, err)
	return s.Segments
}

// expandable makes segments expandable, of a stream.
func expandable(stream alloc.Stream, segments ...alloc.Segment) []alloc.Segment {
	for i := range segments {
		segments[i].Expandable, segments[i].Stream = true, stream
	}
	return segments
}

// TestSegmentsThatDoNotFitAreLeftOut: a history that contradicts the snapshot's segments says nothing about earlier ones.
func TestSegmentsThatDoNotFitAreLeftOut(t *testing.T) {
	const size = 20 * alloc.MiB
	held := func() []alloc.Segment { return []alloc.Segment{segment(base, "large", inactive(size))} }
	behind := base + alloc.Ptr(size)
	for name, test := range map[string]struct {
		segments []alloc.Segment
		event    tables.EventEntry
		fits     bool
	}{
		"freed behind it":               {held(), an(mem.SegmentFreed, behind, size), true},
		"freed before it":               {held(), an(mem.SegmentFreed, base-alloc.Ptr(size), size), true},
		"freed where it is":             {held(), an(mem.SegmentFreed, base, size), false},
		"freed in it":                   {held(), an(mem.SegmentFreed, base+4<<20, 2*alloc.MiB), false},
		"freed with its last byte":      {held(), an(mem.SegmentFreed, behind-1, size), false},
		"freed with its first byte":     {held(), an(mem.SegmentFreed, base-alloc.Ptr(size), size+1), false},
		"freed of no size":              {held(), an(mem.SegmentFreed, behind, 0), false},
		"freed beyond the last address": {held(), an(mem.SegmentFreed, ^alloc.Ptr(0)-1, size), false},
		"allocated":                     {held(), an(mem.SegmentAllocated, base, size), true},
		"allocated elsewhere":           {held(), an(mem.SegmentAllocated, behind, size), false},
		"allocated in part":             {held(), an(mem.SegmentAllocated, base, size-1), false},
		"allocated larger":              {held(), an(mem.SegmentAllocated, base, size+1), false},
		"allocated of no size":          {held(), an(mem.SegmentAllocated, base, 0), false},
		"mapped in part":                {expandable(0, held()...), an(mem.SegmentAllocated, base, 2*alloc.MiB), true},
		"mapped of no size":             {expandable(0, held()...), an(mem.SegmentAllocated, base, 0), false},
		"mapped larger":                 {expandable(0, held()...), an(mem.SegmentAllocated, base+2<<20, size), false},
	} {
		got := before(t, story(test.segments, test.event))
		assert.Equal(t, test.fits, got != nil, name)
	}
}

// TestBuffersOutsideOfTheSegments: only memory of other code can be there.
func TestBuffersOutsideOfTheSegments(t *testing.T) {
	held := []alloc.Segment{segment(base, "small", inactive(2*alloc.MiB))}
	for _, at := range []alloc.Ptr{base - 4096, base + 2<<20} {
		assert.Len(t, before(t, story(held, an(mem.Unregistered, at, 512))), 1)
		assert.Nil(t, before(t, story(held, an(mem.Freed, at, 512))))
	}
	assert.Nil(t, before(t, story(held, an(mem.Freed, base+2<<20-512, 1024))), "it reaches beyond the segment")
	assert.NotNil(t, before(t, story(nil, an(mem.Freed, base, 1024))), "there is no cache")
	got := before(t, story(held, an(mem.Unregistered, base+4096, 512)))
	assert.Equal(t, held, got, "memory of other code is no block, even if its address is in a segment")
}

// TestExpandableSegmentsJoin with what is mapped beside them on the same stream, and are cut where memory is unmapped.
func TestExpandableSegmentsJoin(t *testing.T) {
	const page = 20 * alloc.MiB
	middle := base + alloc.Ptr(page)
	three := expandable(0, segment(base, "large", inactive(3*page)))
	for name, test := range map[string]struct {
		segments []alloc.Segment
		event    tables.EventEntry
		want     []alloc.Segment
	}{
		"unmapped between": {
			expandable(0, segment(base, "large", inactive(page)), segment(middle+alloc.Ptr(page), "large", inactive(page))), an(mem.SegmentFreed, middle, page), three,
		},
		"unmapped behind": {expandable(0, segment(base, "large", inactive(2*page))), an(mem.SegmentFreed, middle+alloc.Ptr(page), page), three},
		"unmapped before": {expandable(0, segment(middle, "small", inactive(page))), an(mem.SegmentFreed, base, page), expandable(0, segment(base, "small", inactive(2*page)))},
		"apart": {
			expandable(0, segment(base, "large", inactive(page))), an(mem.SegmentFreed, middle+512, page),
			expandable(0, segment(base, "large", inactive(page)), segment(middle+512, "large", inactive(page))),
		},
		"of another stream": {
			expandable(7, segment(base, "large", inactive(page)), segment(middle+alloc.Ptr(page), "large", inactive(page))), an(mem.SegmentFreed, middle, page),
			append(append(expandable(7, segment(base, "large", inactive(page))), expandable(0, segment(middle, "large", inactive(page)))...), expandable(7, segment(middle+alloc.Ptr(page), "large", inactive(page)))...),
		},
		"mapped in the middle": {
			three, an(mem.SegmentAllocated, middle, page),
			expandable(0, segment(base, "large", inactive(page)), segment(middle+alloc.Ptr(page), "large", inactive(page))),
		},
	} {
		assert.Equal(t, test.want, before(t, story(test.segments, test.event)), name)
	}
	plain := []alloc.Segment{segment(base, "large", inactive(page))}
	got := before(t, story(plain, an(mem.SegmentFreed, middle, page)))
	assert.Equal(t, append(plain, segment(middle, "large", inactive(page))), got, "others do not join")
}

// TestPoolsOfSegments: an event has no pool. In a program without expandable segments it follows from the size.
func TestPoolsOfSegments(t *testing.T) {
	for size, want := range map[alloc.Bytes]string{2 * alloc.MiB: "small", 2*alloc.MiB + 1: "large", 20 * alloc.MiB: "large"} {
		assert.Equal(t, want, before(t, story(nil, an(mem.SegmentFreed, base, size)))[0].Pool, "%v", size)
	}
	held := expandable(0, segment(base, "small", inactive(2*alloc.MiB)))
	got := before(t, story(held, an(mem.SegmentFreed, base+64<<20, 2*alloc.MiB)))
	assert.Equal(t, "large", got[1].Pool, "an expandable segment has no size of its own")
}

// TestUnsplitRemainders: a large block keeps up to 1 MiB that are left of it. A hole that small is no block, so it belongs to the
// block before it.
func TestUnsplitRemainders(t *testing.T) {
	const size = 4 * alloc.MiB
	for name, test := range map[string]struct {
		pool       string
		expandable bool
		hole       alloc.Bytes
		remainder  bool
	}{
		"a hole":                  {"large", false, alloc.MiB + 512, false},
		"the largest remainder":   {"large", false, alloc.MiB, true},
		"a small remainder":       {"large", false, 512, true},
		"of a small segment":      {"small", false, 512, false},
		"of expandable segments":  {"large", true, 512, false},
		"nothing is left of them": {"large", false, 0, false},
	} {
		held := segment(base, test.pool, inactive(size+test.hole))
		held.Expandable = test.expandable
		s, err := rewind.At(story([]alloc.Segment{held}, an(mem.Freed, base, size)), 10)
		require.NoError(t, err)
		want := []alloc.Block{{Ptr: base, Size: size, Requested: size, State: alloc.Allocated}}
		switch {
		case test.remainder:
			want[0].Size += test.hole
		case test.hole > 0:
			want = append(want, alloc.Block{Ptr: base + alloc.Ptr(size), Size: test.hole, State: alloc.Inactive})
		}
		assert.Equal(t, want, s.Segments[0].Blocks, name)
		assert.Equal(t, want[0].Size, s.Allocated, "%s: the buffer has what its block has", name)
	}

	// A free block before a buffer is a hole, however small it is. So is one before another free block.
	s, err := rewind.At(story([]alloc.Segment{segment(base, "large", inactive(8*alloc.MiB))}, an(mem.Freed, base+512, 4*alloc.MiB)), 10)
	require.NoError(t, err)
	assert.Equal(t, []alloc.Block{
		{Ptr: base, Size: 512, State: alloc.Inactive},
		{Ptr: base + 512, Size: 4 * alloc.MiB, Requested: 4 * alloc.MiB, State: alloc.Allocated},
		{Ptr: base + 512 + 4<<20, Size: 4*alloc.MiB - 512, State: alloc.Inactive},
	}, s.Segments[0].Blocks)

	// A pending block has its remainder too, though no buffer is in it.
	s, err = rewind.At(story([]alloc.Segment{segment(base, "large", inactive(size+512))}, an(mem.FreeCompleted, base, size)), 10)
	require.NoError(t, err)
	assert.Equal(t, []alloc.Block{{Ptr: base, Size: size + 512, State: alloc.Pending}}, s.Segments[0].Blocks)
	assert.Zero(t, s.Allocated)
}

// TestTheNextAllocationBoundsABlock: the first block that is made at most 1 MiB behind a large one begins where that ends.
func TestTheNextAllocationBoundsABlock(t *testing.T) {
	const size = 4 * alloc.MiB
	end := base + alloc.Ptr(size)
	free := func() []alloc.Segment { return []alloc.Segment{segment(base, "large", inactive(20*alloc.MiB))} }
	small := []alloc.Segment{segment(base, "small", inactive(20*alloc.MiB))}
	freed := an(mem.Freed, base, size)
	for name, test := range map[string]struct {
		segments []alloc.Segment
		events   []tables.EventEntry
		more     alloc.Bytes
	}{
		"right behind":                 {free(), []tables.EventEntry{an(mem.Allocated, end, size), an(mem.Freed, end, size), freed}, 0},
		"a little behind":              {free(), []tables.EventEntry{an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size), freed}, 512},
		"as far behind as it can be":   {free(), []tables.EventEntry{an(mem.Allocated, end+1<<20, size), an(mem.Freed, end+1<<20, size), freed}, alloc.MiB},
		"too far behind":               {free(), []tables.EventEntry{an(mem.Allocated, end+1<<20+512, size), an(mem.Freed, end+1<<20+512, size), freed}, 0},
		"in a small segment":           {small, []tables.EventEntry{an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size), freed}, 0},
		"after the block is freed":     {free(), []tables.EventEntry{freed, an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size)}, 0},
		"only the first of them":       {free(), []tables.EventEntry{an(mem.Allocated, end+512, 512), an(mem.Freed, end+512, 512), an(mem.Allocated, end+1024, 512), an(mem.Freed, end+1024, 512), freed}, 512},
		"only the first, right behind": {free(), []tables.EventEntry{an(mem.Allocated, end, 512), an(mem.Freed, end, 512), an(mem.Allocated, end+512, 512), an(mem.Freed, end+512, 512), freed}, 0},
		"memory of other code, before": {free(), []tables.EventEntry{an(mem.Registered, base-512, 512), an(mem.Unregistered, base-512, 512), freed}, 0},
	} {
		s, err := rewind.At(story(test.segments, test.events...), 10)
		require.NoError(t, err)
		require.NotEmpty(t, s.Segments, name)
		assert.Equal(t, size+test.more, s.Segments[0].Blocks[0].Size, name)
		assert.Equal(t, size+test.more, s.Allocated, name)
	}

	// A block whose free completes later ends in the same way, and what other code has has the size that it says.
	pending := []tables.EventEntry{an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size), an(mem.FreeCompleted, base, size)}
	s, err := rewind.At(story(free(), pending...), 10)
	require.NoError(t, err)
	assert.Equal(t, size+512, s.Segments[0].Blocks[0].Size)
	after := []tables.EventEntry{an(mem.FreeCompleted, base, size), an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size)}
	s, err = rewind.At(story(free(), after...), 10)
	require.NoError(t, err)
	assert.Equal(t, size, s.Segments[0].Blocks[0].Size)
	other := []tables.EventEntry{an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size), an(mem.Unregistered, base, size)}
	s, err = rewind.At(story(free(), other...), 10)
	require.NoError(t, err)
	assert.Equal(t, size, s.Allocated)
	// The next segment's first block says nothing of the last block of this one.
	two := []alloc.Segment{segment(base, "large", inactive(size)), segment(end+512, "large", inactive(size))}
	s, err = rewind.At(story(two, an(mem.Allocated, end+512, size), an(mem.Freed, end+512, size), freed), 10)
	require.NoError(t, err)
	assert.Equal(t, size, s.Segments[0].Blocks[0].Size)
	assert.Len(t, s.Segments, 2)
}
