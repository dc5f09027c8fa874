package bands

import (
	"context"
	"math"
	"sync"
)

// View is the part of a layer that a tile shows.
type View struct {
	Columns []Column // in order
	Y0, Y1  int64    // heights, in bytes; Y1 is above Y0
	Rows    int
}

// Item is a rectangle of a tile: one allocation, or neighbours that are lower than a row.
type Item struct {
	From, To int   // columns; To is not included
	Offset   int64 // of its bottom; the item may reach out of the view
	Bytes    int64
	Count    int32  // of allocations
	ID       uint32 // of the allocation; None if there are several
	Largest  uint32 // the allocation itself, or the largest that is among them in some column
}

// None is the ID of an item of several allocations.
const None = math.MaxUint32

// Tile is what a view shows. Each column shows the moment of most live bytes among its moments, so that no peak is lost.
type Tile struct {
	Moments []uint32 // of each column
	Levels  []int64  // live bytes then, at all heights
	// Passed counts the allocations that begin in the columns, but that none shows: they end before the moment of the column
	// in which they begin, or of the next one. PassedBytes is their sum. What begins after the moment of the last column and
	// outlives it is not counted, unless the history ends there: a tile to the right shows it.
	Passed      []uint32
	PassedBytes []int64
	Items       []Item // by From, then by Offset
}

// Tile computes a tile. An allocation of at least one row is an item of its own. Lower ones are merged with their neighbours
// until the item is as high as a row. An item that is the same in successive columns is one rectangle. There are at most
// 2*Rows+3 items a column. The error is the context's.
//
// Its cost follows the allocations that the view's columns show or pass, and the items.
func (l *Layer) Tile(ctx context.Context, v View) (*Tile, error) {
	n := len(v.Columns)
	t := &Tile{Moments: make([]uint32, n), Levels: make([]int64, n), Passed: make([]uint32, n), PassedBytes: make([]int64, n)}
	for c, column := range v.Columns {
		t.Moments[c] = l.Highest(column.From, column.To)
		t.Levels[c] = l.level[t.Moments[c]]
	}
	s := sweeps.Get().(*sweep)
	defer s.release()
	s.reset(l, t, v)
	if err := s.gather(ctx); err != nil {
		return nil, err
	}
	s.split()
	for c := range n {
		if c%32 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.column(c)
	}
	return t, nil
}

// sweep goes through the columns of a tile from left to right. It keeps the sums of the shown allocations that are live in
// leaves, in the order of the stack: a leaf is an allocation of at least a row, or neighbours that are lower. Sums over 64
// leaves, and over 64 of these, let it skip what is below the view or lower than a row.
type sweep struct {
	*Layer
	*Tile
	View
	row int64

	shown []uint32 // places of the allocations that some column shows, by age
	first []int    // of each column, the index in shown of those that begin in it; and the end
	leaf  []uint32 // of each of shown
	ends  []int32  // of each column, the index in shown of one that ends before it, plus one
	next  []int32  // of each of shown, another that ends before the same column, plus one

	largest []uint32  // of each leaf, the place of its largest allocation
	big     []bool    // of each leaf: it is one allocation of at least a row
	sums    [3][]node // of leaves, of 64 and of 64*64

	before, now []int32 // the items of the last column and of this one, by their index in Items
}

// node is the sum of the allocations that are live in a leaf, or in several.
type node struct {
	bytes int64
	count int32
	bigs  int32  // the large leaves among them that are live
	xor   uint32 // of the places of those live: of one, its place
}

var sweeps = sync.Pool{New: func() any { return new(sweep) }}

const (
	fan  = 64
	bits = 6
)

func (s *sweep) reset(l *Layer, t *Tile, v View) {
	s.Layer, s.Tile, s.View = l, t, v
	s.row = max(1, (v.Y1-v.Y0+int64(v.Rows)-1)/int64(v.Rows))
	s.shown, s.first, s.leaf, s.next = s.shown[:0], s.first[:0], s.leaf[:0], s.next[:0]
	s.largest, s.big, s.before, s.now = s.largest[:0], s.big[:0], s.before[:0], s.now[:0]
	s.ends = zeroed(s.ends, len(v.Columns)+1)
}

// release gives the sweep's memory to the next one.
func (s *sweep) release() {
	s.Layer, s.Tile, s.View = nil, nil, View{}
	sweeps.Put(s)
}

// zeroed returns a slice of n zeros, in the memory of an old one if that has room.
func zeroed[T any](old []T, n int) []T {
	if cap(old) < n {
		return make([]T, n)
	}
	old = old[:n]
	clear(old)
	return old
}

// gather finds the allocations that the columns show, and where each ends.
func (s *sweep) gather(ctx context.Context) error {
	moments := s.Moments
	s.first = append(s.first, 0)
	s.eachLive(moments[0], func(i int) bool {
		s.shown = append(s.shown, uint32(i))
		return true
	})
	begin := 0
	if from := s.Columns[0].From; from > 0 {
		begin = s.bornBy(from - 1)
	}
	at := s.bornBy(moments[0])
	for i := begin; i < at; i++ {
		if s.died[i] <= moments[0] {
			s.pass(0, i)
		}
	}
	for c := 1; c < len(moments); c++ {
		s.first = append(s.first, len(s.shown))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for moment := moments[c]; at < len(s.born) && s.born[at] <= moment; at++ {
			if s.died[at] > moment {
				s.shown = append(s.shown, uint32(at))
			} else {
				s.pass(c, at)
			}
		}
	}
	s.first = append(s.first, len(s.shown))
	last := len(moments) - 1
	for end := s.Columns[last].To; at < len(s.born) && s.born[at] <= end; at++ {
		if s.died[at] <= end || int(end) == len(s.level)-1 {
			s.pass(last, at)
		}
	}
	return nil
}

func (s *sweep) pass(column, i int) {
	s.Passed[column]++
	s.PassedBytes[column] += s.bytes[i]
}

// split puts the shown allocations into leaves, and finds the column before which each ends. The leaf of low ones is full when
// they would together be as high as a row.
func (s *sweep) split() {
	s.leaf, s.next = zeroed(s.leaf, len(s.shown)), zeroed(s.next, len(s.shown))
	full := true // the last leaf takes no more
	var height, most int64
	for k, i := range s.shown {
		bytes := s.bytes[i]
		big := bytes >= s.row
		if big || full {
			s.largest, s.big = append(s.largest, i), append(s.big, big)
			height, most = 0, bytes
		}
		leaf := len(s.largest) - 1
		s.leaf[k] = uint32(leaf)
		if height += bytes; bytes > most {
			s.largest[leaf], most = i, bytes
		}
		full = big || height >= s.row
		if c := s.endOf(s.died[i]); c < len(s.Moments) {
			s.next[k], s.ends[c] = s.ends[c], int32(k)+1
		}
	}
	n := len(s.largest)
	for d := range s.sums {
		s.sums[d] = zeroed(s.sums[d], n)
		n = (n + fan - 1) / fan
	}
}

// endOf returns the first column whose moment is not before died.
func (s *sweep) endOf(died uint32) int {
	if died == Forever {
		return len(s.Moments)
	}
	base, n := 0, len(s.Moments)
	for n > 0 {
		half := n / 2
		if s.Moments[base+half] < died {
			base, n = base+half+1, n-half-1
		} else {
			n = half
		}
	}
	return base
}

// add enters a shown allocation, or takes it out.
func (s *sweep) add(k int, sign int32) {
	leaf, i := s.leaf[k], s.shown[k]
	bytes := s.bytes[i] * int64(sign)
	bigs := int32(0)
	if s.big[leaf] {
		bigs = sign
	}
	for d := range s.sums {
		n := &s.sums[d][leaf>>(bits*d)]
		n.bytes += bytes
		n.count += sign
		n.bigs += bigs
		n.xor ^= i
	}
}

// column enters what has changed since the column before, and makes its items.
func (s *sweep) column(c int) {
	changed := c == 0
	for k := s.ends[c]; k != 0; k = s.next[k-1] {
		s.add(int(k-1), -1)
		changed = true
	}
	for k := s.first[c]; k < s.first[c+1]; k++ {
		s.add(k, 1)
		changed = true
	}
	if !changed {
		for _, item := range s.before {
			s.Items[item].To = c + 1
		}
		return
	}
	s.stack(c)
	s.before, s.now = s.now, s.before[:0]
}

// stack makes the items of a column from the bottom to the top of the view.
func (s *sweep) stack(c int) {
	leaf, offset := s.bottom()
	merged := Item{From: c, To: c + 1, Offset: offset}
	sum := node{}
	known := 0 // how many items of the column before are below
	emit := func() {
		if sum.count > 0 {
			merged.Bytes, merged.Count, merged.ID = sum.bytes, sum.count, None
			if sum.count == 1 {
				merged.ID = s.ID(int(sum.xor))
				merged.Largest = merged.ID
			} else {
				merged.Largest = s.ID(int(merged.Largest))
			}
			known = s.put(merged, known)
		}
		offset += sum.bytes
		merged, sum = Item{From: c, To: c + 1, Offset: offset}, node{}
	}
	for leaf < len(s.largest) && offset+sum.bytes < s.Y1 {
		depth := s.skippable(leaf, sum.bytes)
		n := &s.sums[max(0, depth)][leaf>>(bits*max(0, depth))]
		if n.count > 0 {
			if depth < 0 && (n.bigs > 0 || n.bytes >= s.row) {
				emit()
			}
			if sum.count == 0 {
				merged.Largest = s.largest[leaf]
			}
			sum.bytes += n.bytes
			sum.count += n.count
			sum.xor ^= n.xor
			if sum.bytes >= s.row {
				emit()
			}
		}
		leaf += 1 << (bits * max(0, depth))
	}
	emit()
}

// bottom returns the first leaf that reaches into the view, and what is below it.
func (s *sweep) bottom() (leaf int, below int64) {
	if s.Y0 <= 0 {
		return 0, 0
	}
	for d := len(s.sums) - 1; d >= 0; d-- {
		nodes := s.sums[d]
		for i := leaf >> (bits * d); i < len(nodes); i++ {
			if n := nodes[i].bytes; below+n > s.Y0 {
				break
			} else if i == len(nodes)-1 && d == len(s.sums)-1 {
				return len(s.largest), below + n
			}
			below += nodes[i].bytes
			leaf = (i + 1) << (bits * d)
		}
	}
	return leaf, below
}

// skippable returns the largest depth at which the node that begins with a leaf can be merged as a whole, beside what is
// merged already; -1 if only the leaf itself is left to look at.
func (s *sweep) skippable(leaf int, merged int64) int {
	for d := len(s.sums) - 1; d > 0; d-- {
		if leaf&(1<<(bits*d)-1) != 0 {
			continue
		}
		if n := &s.sums[d][leaf>>(bits*d)]; n.bigs == 0 && merged+n.bytes < s.row {
			return d
		}
	}
	return -1
}

// put adds an item, or prolongs the same one of the column before. known is the index in before from which to look; it
// returns the next.
func (s *sweep) put(item Item, known int) int {
	for ; known < len(s.before); known++ {
		old := &s.Items[s.before[known]]
		if old.Offset > item.Offset {
			break
		}
		if old.Offset == item.Offset && old.Bytes == item.Bytes && old.Count == item.Count && old.ID == item.ID {
			old.To = item.To
			s.now = append(s.now, s.before[known])
			return known + 1
		}
	}
	s.now = append(s.now, int32(len(s.Items)))
	s.Items = append(s.Items, item)
	return known
}
