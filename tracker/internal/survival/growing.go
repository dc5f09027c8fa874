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
	Now   float64 // old buffers gained each second, in the last quarter of the time looked at
	First float64 // and in the first quarter
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
	w := census{width: WidthAt(now)}
	w.n = int(now / w.width)
	if w.n < windows/2 || len(live) < Fewest || u.Missed {
		return Growing{}, false
	}
	freed := &Triangle{shift: shiftAt(now)}
	if u.Grown != nil {
		*freed = *u.Grown
	}
	if freed.fit(now); freed.shift != shiftAt(now) {
		return Growing{}, false // it is of a later time
	}
	var born [windows]int64
	for _, b := range live {
		born[min(windows-1, int(max(0, b.Since)/w.width))]++
	}
	for _, part := range []int{8, 16, 4} {
		w.old = max(2, w.n/part)
		w.count(freed, &born)
		for _, from := range []int{w.old, w.n / 2, w.n - w.n/4 - windows/8} {
			if from >= w.old && w.n-from > minRises && w.grows(from) {
				return w.growing(from), true
			}
		}
	}
	return Growing{}, false
}

// census is the number of buffers at the end of each window.
type census struct {
	width time.Duration
	n     int // windows that are over
	old   int // the age in windows from which a buffer is old

	whole  [windows]int64 // all buffers
	grown  [windows]int64 // the old ones
	became [windows]int64 // buffers that became old in each window
	freed  [windows]int64 // old buffers freed in each window
}

// count fills the census from the freed buffers, and from the live ones by the window of their
// birth.
func (w *census) count(freed *Triangle, born *[windows]int64) {
	w.whole, w.grown, w.became, w.freed = [windows]int64{}, [windows]int64{}, [windows]int64{}, [windows]int64{}
	for b := range w.n {
		n := born[b]
		if w.n < windows {
			n += int64(freed.n[at(b, w.n)]) // freed in the window that has not ended yet
		}
		for j := w.n - 1; j >= b; j-- {
			gone := int64(freed.n[at(b, j)])
			w.whole[j] += n
			if j >= b+w.old {
				w.grown[j] += n
				w.freed[j] += gone
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
		2*sum(w.freed[from+1:w.n]) <= sum(w.became[from+1:w.n]) &&
		wholeRise*float64(slices.Min(whole[half:])-slices.Min(whole[:half])) >= mean(grown[len(grown)-quarter:])-mean(grown[:quarter])
}

// growing describes the growth from that window on.
func (w *census) growing(from int) Growing {
	grown := w.grown[from:w.n]
	last := len(grown) - 1
	quarter := last / 4
	rate := func(i, j int) float64 { return float64(grown[j]-grown[i]) / (float64(j-i) * w.width.Seconds()) }
	return Growing{
		Age: time.Duration(w.old) * w.width, Freed: sum(w.freed[from+1 : w.n]),
		From: time.Duration(from+1-w.old) * w.width, To: time.Duration(w.n-w.old) * w.width,
		Now: rate(last-quarter, last), First: rate(0, quarter),
	}
}

func sum(of []int64) (all int64) {
	for _, n := range of {
		all += n
	}
	return all
}

func mean(of []int64) float64 { return float64(sum(of)) / float64(len(of)) }
