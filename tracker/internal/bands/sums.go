package bands

import (
	"cmp"
	"context"
	"slices"
)

// Sums adds up allocations: those live at a moment, those live at the peak of the layer, those that began in a range, and how
// long those of the layer lived in it.
type Sums struct {
	LiveBytes, LiveCount int64
	PeakBytes, PeakCount int64
	BornBytes, BornCount int64
	Lifetime             float64 // bytes times seconds, or times events if the index is untimed
	Largest              uint32  // of those live, or of those that began in the range, or that were live in it; None if there are none
	largest              int64
}

func (s *Sums) add(o *Sums) {
	s.LiveBytes, s.LiveCount = s.LiveBytes+o.LiveBytes, s.LiveCount+o.LiveCount
	s.PeakBytes, s.PeakCount = s.PeakBytes+o.PeakBytes, s.PeakCount+o.PeakCount
	s.BornBytes, s.BornCount = s.BornBytes+o.BornBytes, s.BornCount+o.BornCount
	s.Lifetime += o.Lifetime
	s.note(o.Largest, o.largest)
}

func (s *Sums) note(id uint32, bytes int64) {
	if id != None && (s.Largest == None || bytes > s.largest) {
		s.Largest, s.largest = id, bytes
	}
}

// Selection is the moment and the range that sums are of.
type Selection struct {
	Moment     uint32
	Range      Column  // moments, both included
	begin, end float64 // of the range, in seconds, or in events if the index is untimed
}

// Select returns a selection of a moment of an index and of a range of an axis.
func Select(x *Index, moment uint32, a Axis, x0, x1 float64) Selection {
	s := Selection{moment, x.Span(a, x0, x1), x0, x1}
	if a == ByEvent && !x.Untimed() {
		s.begin, s.end = placeTime(x, x0), placeTime(x, x1)
	}
	return s
}

// overlap returns how much of a lifetime is in the range.
func (s *Selection) overlap(x *Index, born, died uint32) float64 {
	from, to := float64(born), float64(min(died, x.Moments()))
	if !x.Untimed() {
		from, to = x.At(born), x.Seconds()
		if died != Forever {
			to = x.At(died)
		}
	}
	return max(0, min(to, s.end)-max(from, s.begin))
}

// placeTime returns the time of a place on the axis of events.
func placeTime(x *Index, at float64) float64 {
	if at >= float64(x.Moments()) {
		return x.Seconds()
	}
	m := uint32(max(0, at))
	from, to := x.At(m), x.At(m+1)
	return from + (to-from)*(max(0, at)-float64(m))
}

// ByStack sums up a layer by call stack. The error is the context's.
func ByStack(ctx context.Context, x *Index, l *Layer, s Selection) ([]Sums, error) {
	return sum(ctx, x, l, s, len(x.stackOf), func(id uint32) uint32 { return x.stacks[id] })
}

// sum sums up a layer by a key, which is below keys.
func sum(ctx context.Context, x *Index, l *Layer, s Selection, keys int, key func(id uint32) uint32) ([]Sums, error) {
	sums := make([]Sums, keys)
	for i := range sums {
		sums[i].Largest = None
	}
	peak := x.All.Peak() // one moment, whatever the filter
	end := max(l.bornBy(s.Range.To), l.bornBy(s.Moment), l.bornBy(peak))
	for i := range end {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		born, died, bytes := l.born[i], l.died[i], l.bytes[i]
		live, atPeak := born <= s.Moment && s.Moment < died, born <= peak && peak < died
		within := born <= s.Range.To && died > s.Range.From
		if !live && !atPeak && !within {
			continue
		}
		id := l.ID(i)
		at := &sums[key(id)]
		if live {
			at.LiveBytes += bytes
			at.LiveCount++
		}
		if atPeak {
			at.PeakBytes += bytes
			at.PeakCount++
		}
		if within {
			if born >= s.Range.From {
				at.BornBytes += bytes
				at.BornCount++
			}
			at.Lifetime += float64(bytes) * s.overlap(x, born, died)
		}
		at.note(id, bytes)
	}
	return sums, nil
}

// Key is what a table sums up by.
type Key uint8

// The keys.
const (
	ByLine Key = iota
	ByKind
	ByCallStack
	BySize
)

// Row is a row of a table.
type Row struct {
	Key uint64 // the number of the line, kind or stack, or the bytes of each
	Sums
}

// Table sums up a layer by a key, and leaves out what has nothing. The error is the context's.
func Table(ctx context.Context, x *Index, l *Layer, by Key, s Selection) ([]Row, Sums, error) {
	var sums []Sums
	var keys []uint64
	var err error
	switch by {
	case ByKind:
		_, n := x.Names.Len()
		sums, err = sum(ctx, x, l, s, n, func(id uint32) uint32 { return uint32(x.kinds[id]) })
	case BySize:
		numbers := make(map[int64]uint32)
		for _, bytes := range l.bytes {
			if _, ok := numbers[bytes]; !ok {
				numbers[bytes] = uint32(len(keys))
				keys = append(keys, uint64(bytes))
			}
		}
		sums, err = sum(ctx, x, l, s, len(keys), func(id uint32) uint32 { return numbers[x.Bytes(id)] })
	default:
		sums, err = ByStack(ctx, x, l, s)
	}
	if err != nil {
		return nil, Sums{}, err
	}
	if by == ByLine {
		sums, keys = byLine(x, sums)
	}
	total := Sums{Largest: None}
	var rows []Row
	for i := range sums {
		if sums[i].LiveCount+sums[i].PeakCount+sums[i].BornCount == 0 && sums[i].Lifetime == 0 {
			continue
		}
		total.add(&sums[i])
		key := uint64(i)
		if keys != nil {
			key = keys[i]
		}
		rows = append(rows, Row{key, sums[i]})
	}
	return rows, total, nil
}

// byLine adds up the sums of the stacks of each line.
func byLine(x *Index, stacks []Sums) (sums []Sums, keys []uint64) {
	numbers := make(map[uint32]int)
	for i := range stacks {
		line := x.stackOf[i].line
		n, ok := numbers[line]
		if !ok {
			n = len(sums)
			numbers[line] = n
			sums, keys = append(sums, Sums{Largest: None}), append(keys, uint64(line))
		}
		sums[n].add(&stacks[i])
	}
	return sums, keys
}

// List returns the allocations of a layer that touch a range, at most a number of them from an offset on, with how many there
// are and their bytes. The first ones have most by rank. The error is the context's.
func List(ctx context.Context, l *Layer, r Column, rank func(id uint32) float64, offset, most int) (ids []uint32, n int, bytes int64, err error) {
	type ranked struct {
		by float64
		id uint32
	}
	var found []ranked
	shrink := func() {
		slices.SortFunc(found, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.by, a.by), cmp.Compare(a.id, b.id)) })
		found = found[:min(len(found), offset+most)]
	}
	for i := range l.bornBy(r.To) {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, 0, 0, context.Cause(ctx)
		}
		if l.died[i] <= r.From {
			continue
		}
		n++
		bytes += l.bytes[i]
		id := l.ID(i)
		if found = append(found, ranked{rank(id), id}); len(found) >= 4*(offset+most)+1024 {
			shrink()
		}
	}
	shrink()
	for _, f := range found[min(offset, len(found)):] {
		ids = append(ids, f.id)
	}
	return ids, n, bytes, nil
}
