package survival

import (
	"fmt"
	"math/bits"
	"time"
)

// windows is how many windows a program's time is divided into: all are equally long, a power of two of
// nanoseconds. When they are used up, neighbours are merged; so there are 32 to 64.
const windows = 64

// leastWidth is the least length of a window, 1.07 s.
const leastWidth = time.Duration(1) << leastShift

const leastShift = 30

// Triangle counts freed buffers by the window of their birth and the window of their death. It is
// half of a square, since nothing dies before it is born (a Lexis diagram). Buffers born and freed
// in the same window carry no information, and may be left out.
type Triangle struct {
	shift int // a window is 2^shift ns
	n     [windows * (windows + 1) / 2]uint32
}

// shiftAt returns the shift of the windows at that time.
func shiftAt(now time.Duration) int {
	return max(leastShift, bits.Len64(uint64(max(0, now)))-6)
}

// WidthAt returns how long a window is at that time since the program's start.
func WidthAt(now time.Duration) time.Duration { return 1 << shiftAt(now) }

// at is where the buffers of two windows are counted.
func at(born, died int) int { return died*(died+1)/2 + born }

// freed counts a buffer, unless it was born in the present window.
func (t *Triangle) freed(born, now time.Duration) {
	t.fit(now)
	b, d := int(max(0, born)>>t.shift), int(now>>t.shift)
	if b < d && t.n[at(b, d)] != 1<<32-1 {
		t.n[at(b, d)]++
	}
}

// fit merges windows until that time is in one of them.
func (t *Triangle) fit(now time.Duration) {
	for t.shift < shiftAt(now) {
		t.shift++
		var n [len(t.n)]uint32
		for d := range windows {
			for b := range d + 1 {
				to := &n[at(b/2, d/2)]
				*to = uint32(min(1<<32-1, uint64(*to)+uint64(t.n[at(b, d)])))
			}
		}
		t.n = n
	}
}

// empty reports whether no counted buffer became older than a window.
func (t *Triangle) empty() bool {
	for d := range windows {
		for b := range d {
			if t.n[at(b, d)] != 0 {
				return false
			}
		}
	}
	return true
}

// Clone returns a copy; nil of nil.
func (t *Triangle) Clone() *Triangle {
	if t == nil {
		return nil
	}
	own := *t
	return &own
}

// Rows returns the counts for a file: the length of a window, and for each window of death the
// buffers by their window of birth, without trailing zeros.
func (t *Triangle) Rows() (width time.Duration, rows [][]uint32) {
	rows = make([][]uint32, windows)
	used := 0
	for d := range windows {
		row := t.n[at(0, d) : at(d, d)+1]
		for len(row) > 0 && row[len(row)-1] == 0 {
			row = row[:len(row)-1]
		}
		if rows[d] = append([]uint32{}, row...); len(row) > 0 {
			used = d + 1
		}
	}
	return 1 << t.shift, rows[:used]
}

// ReadTriangle returns the triangle that Rows wrote to a file. The error says that the rows form no
// triangle.
func ReadTriangle(width time.Duration, rows [][]uint32) (*Triangle, error) {
	shift := bits.Len64(uint64(max(0, width))) - 1
	if width < leastWidth || width != 1<<shift || len(rows) > windows {
		return nil, fmt.Errorf("%d windows of %d ns: want at most %d, of a power of two", len(rows), width, windows)
	}
	t := &Triangle{shift: shift}
	for d, row := range rows {
		if len(row) > d+1 {
			return nil, fmt.Errorf("window %d has buffers from %d windows", d, len(row))
		}
		copy(t.n[at(0, d):], row)
	}
	return t, nil
}
