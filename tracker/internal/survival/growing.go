package survival

import (
	"slices"
	"time"
)

// What makes a unit grow.
const (
	minRises    = 8 // windows in which the number of old buffers rose, and by how many buffers it rose
	fallsInRise = 8 // all falls are at most that part of all rises
	stillRising = 5 // the last quarter of the windows brought at least that part of the gain
	wholeRise   = 4 // the lowest level of all buffers rose by at least that part of the gain
)

// Growing is how a unit grows.
type Growing struct {
	Age   time.Duration // buffers of this age and more count as old
	From  time.Duration // those born from here to To became old
	To    time.Duration
	Freed int64   // how many of those were freed since
	Gain  float64 // old buffers gained, from the first quarter of the time looked at to the last
	Now   float64 // old buffers gained each second, in the last quarter of the time looked at
	First float64 // and in the first quarter

	of   *census
	from int // the first window looked at
}

// Growing reports whether the number of the unit's old buffers keeps growing. The buffers are in
// the order of their allocation.
//
// A buffer is old when it has lived for a sixteenth, an eighth or a quarter of all windows so far;
// each of these is tried. A unit grows if, over all windows or over the latest half or quarter of
// them: the number of old buffers rose at least eight times, hardly ever fell and still rises; at
// most half of those that became old were freed since; and the number of all buffers rose too,
// which it does not when old ones are only replaced.
func (u *Unit) Growing(now time.Duration, live []Buffer) (Growing, bool) {
	if len(live) < Fewest || now/WidthAt(now) < windows/2 {
		return Growing{}, false
	}
	w, ok := u.census(now, live)
	if !ok {
		return Growing{}, false
	}
	for _, part := range []int{8, 16, 4} {
		w.count(max(2, w.n/part))
		for _, from := range []int{w.old, w.n / 2, w.n - w.n/4 - windows/8} {
			if w.grows(from) {
				return w.growing(from), true
			}
		}
	}
	return Growing{}, false
}

// Replaced reports whether the line's other call paths have lost what one that grows has gained, in the last quarter of
// its time: then one path only replaces what the others allocated, as a cache does that is full. The buffers are the
// line's. What the others lose counts only if it is more than their number goes up and down by.
func (u *Unit) Replaced(now time.Duration, live []Buffer, path Growing) bool {
	line, ok := u.census(now, live)
	if !ok {
		return false
	}
	line.count(path.of.old)
	last := line.n - 1
	first := last - (last-path.from)/4
	others := func(j int) int64 { return line.whole[j] - path.of.whole[j] }
	var moves int64
	for j := first; j < last; j++ {
		move := others(j+1) - others(j)
		moves += move * move
	}
	lost := others(first) - others(last)
	return 2*lost >= path.of.whole[last]-path.of.whole[first] && 4*lost*lost > 9*moves && lost > 0
}

// census is the number of buffers at the end of each window.
type census struct {
	freed *Triangle
	born  [windows]int64 // live buffers by the window of their birth

	width time.Duration
	n     int // windows that are over
	old   int // the age in windows from which a buffer is old

	whole  [windows]int64 // all buffers
	grown  [windows]int64 // the old ones
	became [windows]int64 // buffers that became old in each window
	gone   [windows]int64 // old buffers freed in each window
}

// census returns what is known of a unit, not counted yet; false if it does not count its old buffers.
func (u *Unit) census(now time.Duration, live []Buffer) (*census, bool) {
	w := &census{freed: &Triangle{shift: shiftAt(now)}, width: WidthAt(now)}
	w.n = int(now / w.width)
	if u.Grown != nil {
		*w.freed = *u.Grown
	}
	if w.freed.fit(now); u.Missed || w.freed.shift != shiftAt(now) {
		return nil, false // it is of a later time
	}
	for _, b := range live {
		w.born[min(windows-1, int(max(0, b.Since)/w.width))]++
	}
	return w, true
}

// count counts the buffers that have lived for at least this many windows as old.
func (w *census) count(old int) {
	w.old = old
	w.whole, w.grown, w.became, w.gone = [windows]int64{}, [windows]int64{}, [windows]int64{}, [windows]int64{}
	for b := range w.n {
		n := w.born[b] + int64(w.freed.n[at(b, w.n)]) // live, or freed in the window that has not ended yet
		for j := w.n - 1; j >= b; j-- {
			gone := int64(w.freed.n[at(b, j)])
			w.whole[j] += n
			if j >= b+w.old {
				w.grown[j] += n
				w.gone[j] += gone
			}
			n += gone
			if j == b+w.old {
				w.became[j] = n
			}
		}
	}
}

// grows reports whether the number of old buffers rises from that window on.
func (w *census) grows(from int) bool {
	grown, whole := w.grown[from:w.n], w.whole[from:w.n]
	rises := 0
	var up, down int64
	for i, n := range grown[1:] {
		switch change := n - grown[i]; {
		case change > 0:
			rises++
			up += change
		case change < 0:
			down -= change
		}
	}
	gain, last := up-down, len(grown)-1
	quarter := max(1, len(grown)/4)
	half := (from+w.n)/2 - from
	return rises >= minRises && gain >= minRises && down*fallsInRise <= up &&
		(grown[last]-grown[last-last/4])*stillRising >= gain &&
		2*sum(w.gone[from+1:w.n]) <= sum(w.became[from+1:w.n]) &&
		wholeRise*float64(slices.Min(whole[half:])-slices.Min(whole[:half])) >= mean(grown[len(grown)-quarter:])-mean(grown[:quarter])
}

// growing describes the growth from that window on.
func (w *census) growing(from int) Growing {
	grown := w.grown[from:w.n]
	last := len(grown) - 1
	quarter := last / 4
	rate := func(i, j int) float64 { return float64(grown[j]-grown[i]) / (float64(j-i) * w.width.Seconds()) }
	return Growing{
		Age: time.Duration(w.old) * w.width, Freed: sum(w.gone[from+1 : w.n]),
		From: time.Duration(from+1-w.old) * w.width, To: time.Duration(w.n-w.old) * w.width,
		Now: rate(last-quarter, last), First: rate(0, quarter), of: w, from: from,
	}
}

func sum(of []int64) (all int64) {
	for _, n := range of {
		all += n
	}
	return all
}

func mean(of []int64) float64 { return float64(sum(of)) / float64(len(of)) }
