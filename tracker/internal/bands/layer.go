package bands

import (
	"cmp"
	"slices"
	"sort"
)

// Layer is a set of allocations, oldest first, and the sum of those live at each moment.
type Layer struct {
	born, died []uint32
	bytes      []int64
	ids        []uint32 // the number of each in the index; nil if it is its place

	level []int64  // live bytes at each moment
	high  []uint32 // of each block of moments, the first with most live bytes
	low   []uint32 // and with least
	last  []uint32 // of each block of allocations, when the last one ended
	peak  uint32
}

const block = 64 // moments, or allocations

// finish computes what follows from the lifetimes.
func (l *Layer) finish(moments uint32) {
	l.level = make([]int64, moments)
	for i, born := range l.born {
		l.level[born] += l.bytes[i]
		if died := l.died[i]; died < moments {
			l.level[died] -= l.bytes[i]
		}
	}
	var sum int64
	for m, change := range l.level {
		sum += change
		l.level[m] = sum
	}
	n := (int(moments) + block - 1) / block
	l.high, l.low = make([]uint32, n), make([]uint32, n)
	for i := range n {
		high, low := i*block, i*block
		for m := i * block; m < min((i+1)*block, int(moments)); m++ {
			if l.level[m] > l.level[high] {
				high = m
			}
			if l.level[m] < l.level[low] {
				low = m
			}
		}
		l.high[i], l.low[i] = uint32(high), uint32(low)
	}
	l.last = make([]uint32, (len(l.died)+block-1)/block)
	for i := range l.last {
		l.last[i] = slices.Max(l.died[i*block : min((i+1)*block, len(l.died))])
	}
	l.peak = l.Highest(0, moments-1)
}

// Len returns the number of allocations.
func (l *Layer) Len() int { return len(l.born) }

// ID returns the number in the index of the layer's i-th allocation.
func (l *Layer) ID(i int) uint32 {
	if l.ids == nil {
		return uint32(i)
	}
	return l.ids[i]
}

// Level returns the live bytes at a moment.
func (l *Layer) Level(moment uint32) int64 { return l.level[moment] }

// Peak returns the first moment with most live bytes.
func (l *Layer) Peak() uint32 { return l.peak }

// Highest returns the first moment with most live bytes among those from one to another, both included.
func (l *Layer) Highest(from, to uint32) uint32 {
	return l.extreme(from, to, l.high, func(a, b int64) bool { return a > b })
}

// Lowest returns the first moment with least live bytes among those from one to another, both included.
func (l *Layer) Lowest(from, to uint32) uint32 {
	return l.extreme(from, to, l.low, func(a, b int64) bool { return a < b })
}

func (l *Layer) extreme(from, to uint32, blocks []uint32, beyond func(a, b int64) bool) uint32 {
	best := from
	try := func(m uint32) {
		if beyond(l.level[m], l.level[best]) {
			best = m
		}
	}
	m := from
	for ; m <= to && m%block != 0; m++ {
		try(m)
	}
	for ; m+block-1 <= to; m += block {
		try(blocks[m/block])
	}
	for ; m <= to; m++ {
		try(m)
	}
	return best
}

// bornBy returns how many allocations had begun at a moment.
func (l *Layer) bornBy(moment uint32) int {
	return sort.Search(len(l.born), func(i int) bool { return l.born[i] > moment })
}

// eachLive calls do with the place of each allocation that is live at the moment, oldest first, until it returns false.
func (l *Layer) eachLive(moment uint32, do func(i int) bool) {
	end := l.bornBy(moment)
	for b := 0; b*block < end; b++ {
		if l.last[b] <= moment {
			continue
		}
		for i := b * block; i < min((b+1)*block, end); i++ {
			if l.died[i] > moment && !do(i) {
				return
			}
		}
	}
}

// Live returns the numbers of the allocations that are live at a moment, oldest first.
func (l *Layer) Live(moment uint32) (ids []uint32) {
	l.eachLive(moment, func(i int) bool {
		ids = append(ids, l.ID(i))
		return true
	})
	return ids
}

// Count returns how many allocations are live at a moment.
func (l *Layer) Count(moment uint32) (n int) {
	l.eachLive(moment, func(int) bool { n++; return true })
	return n
}

// place returns the place of an allocation in the layer; false if it is not in it.
func (l *Layer) place(id uint32) (int, bool) {
	if l.ids == nil {
		return int(id), int(id) < len(l.born)
	}
	return slices.BinarySearch(l.ids, id)
}

// Offset returns the bytes that are live below an allocation at a moment; false if it is not live in the layer then.
func (l *Layer) Offset(id, moment uint32) (below int64, ok bool) {
	at, ok := l.place(id)
	if !ok || l.born[at] > moment || l.died[at] <= moment {
		return 0, false
	}
	l.eachLive(moment, func(i int) bool {
		if i >= at {
			return false
		}
		below += l.bytes[i]
		return true
	})
	return below, true
}

// Band is an allocation at a moment.
type Band struct {
	ID     uint32
	Offset int64 // of its bottom, in bytes
	Bytes  int64
}

// Bands returns the bands at a moment that touch the heights from y0 to y1. Of more than most it returns the largest, and
// the number of the others. Where y0 is y1, it is the band at that height.
func (l *Layer) Bands(moment uint32, y0, y1 int64, most int) (found []Band, more int) {
	var below int64
	l.eachLive(moment, func(i int) bool {
		b := Band{l.ID(i), below, l.bytes[i]}
		below += b.Bytes
		switch {
		case b.Offset > y1 || b.Offset == y1 && y1 > y0:
			return false
		case below > y0:
			found = append(found, b)
		}
		return b.Offset <= y1
	})
	if more = len(found) - most; more <= 0 {
		return found, 0
	}
	slices.SortFunc(found, func(a, b Band) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return slices.Clip(found[:most]), more
}

// Size returns the bytes of memory that the layer takes.
func (l *Layer) Size() int {
	return 20*len(l.born) + 8*len(l.level) + (4+4)*len(l.high) + 4*len(l.last)
}
