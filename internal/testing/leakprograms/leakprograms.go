// Package leakprograms has programs that allocate and free in a time of their own: such that leak, such that leak
// nothing, and such of which nobody can know that yet. A [Source] of leaks is asked again and again while one runs.
package leakprograms

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"
)

// Source looks for leaks.
type Source interface {
	// Alloc allocates a buffer at a line, reached on a call path of that name, and returns what frees it.
	Alloc(line, path string) (free func())
	// Look names the lines with buffers that look forgotten, and those that grow.
	Look() (forgotten, growing []string)
}

// World runs a program. Times are seconds.
type World struct {
	source Source
	r      *rand.Rand
	now    float64
	plans  plans
	n      int
	lost   int
	leaks  map[string]float64 // when each line began to leak
	lines  map[string]*line
}

// line is how many buffers of a line of code were live, now and at each look.
type line struct {
	n     int
	level []int
}

type buf struct{ free func() }

type plan struct {
	at float64
	n  int
	do func()
}

type plans []plan

func (p plans) Len() int           { return len(p) }
func (p plans) Less(i, j int) bool { return p[i].at < p[j].at || p[i].at == p[j].at && p[i].n < p[j].n }
func (p plans) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *plans) Push(x any)        { *p = append(*p, x.(plan)) }
func (p *plans) Pop() any          { o := *p; x := o[len(o)-1]; *p = o[:len(o)-1]; return x }

// New returns a world without a source, for the program of that number.
func New(seed uint64, program int) *World {
	return &World{
		r: rand.New(rand.NewPCG(seed, uint64(program))), leaks: make(map[string]float64), lines: make(map[string]*line),
	}
}

// Now returns the time since the program's start.
func (w *World) Now() time.Duration { return time.Duration(w.now * 1e9) }

func (w *World) after(d float64, f func()) {
	w.n++
	heap.Push(&w.plans, plan{w.now + d, w.n, f})
}
func (w *World) exp(mean float64) float64        { return w.r.ExpFloat64() * mean }
func (w *World) logn(med, sigma float64) float64 { return med * math.Exp(sigma*w.r.NormFloat64()) }
func (w *World) each(mean float64, f func())     { w.after(w.exp(mean), func() { f(); w.each(mean, f) }) }
func (w *World) every(d float64, f func())       { w.after(d, func() { f(); w.every(d, f) }) }
func (w *World) oneIn(n int) bool                { return w.r.IntN(n) == 0 }

func (w *World) leaky(from float64, lines ...string) {
	for _, l := range lines {
		w.leaks[l] = from
	}
}

func (w *World) alloc(at, path string) *buf {
	l := w.lines[at]
	if l == nil {
		l = new(line)
		w.lines[at] = l
	}
	l.n++
	free := w.source.Alloc(at, path)
	return &buf{func() { l.n--; free() }}
}

func (w *World) freeAfter(d float64, bs ...*buf) {
	w.after(d, func() {
		for _, b := range bs {
			b.free()
		}
	})
}

// Verdict is what one way to find leaks said of a program.
type Verdict struct {
	Found  time.Duration // after the leak began; negative is never
	Lost   int           // buffers by then
	Held   int           // looks from then on that named a leak
	After  int           // looks from then on
	Wrong  int           // looks that named another line, which did not grow either
	Rising int           // looks that named another line, which did
	Looks  int
}

// Run runs the program for so many hours, asks the source at each look, and returns what it said.
func (w *World) Run(source Source, p Program, hours float64, look time.Duration) (forgotten, growing Verdict) {
	w.source = source
	var said [2][]named
	var lost []int
	w.every(look.Seconds(), func() {
		for _, l := range w.lines {
			for len(l.level) < len(lost) {
				l.level = append(l.level, 0)
			}
			l.level = append(l.level, l.n)
		}
		var lines [2][]string
		lines[0], lines[1] = w.source.Look()
		for i := range lines {
			for _, l := range lines[i] {
				said[i] = append(said[i], named{len(lost), l})
			}
		}
		lost = append(lost, w.lost)
	})
	p.run(w)
	for len(w.plans) > 0 && w.plans[0].at < hours*3600 {
		next := heap.Pop(&w.plans).(plan)
		w.now = next.at
		next.do()
	}
	return w.verdict(said[0], lost, look.Seconds()), w.verdict(said[1], lost, look.Seconds())
}

// named is a line that was named at the look of that number.
type named struct {
	look int
	line string
}

// fewest is how many buffers must be lost before a look counts.
const fewest = 8

func (w *World) verdict(said []named, lost []int, look float64) Verdict {
	v := Verdict{Found: -1, Looks: len(lost)}
	held, wrong, rising := -1, -1, -1
	for _, n := range said {
		t := float64(n.look+1) * look
		from, leaks := w.leaks[n.line]
		switch {
		case leaks && t > from:
			if lost[n.look] < fewest {
				continue
			}
			if n.look != held {
				v.Held, held = v.Held+1, n.look
			}
			if v.Found < 0 {
				v.Found, v.Lost = time.Duration((t-from)*1e9), lost[n.look]
				v.After = len(lost) - n.look
			}
		case w.lines[n.line].rises(n.look):
			if n.look != rising {
				v.Rising, rising = v.Rising+1, n.look
			}
		case n.look != wrong:
			v.Wrong, wrong = v.Wrong+1, n.look
		}
	}
	return v
}

// rises reports whether the mean level of the next quarter of the time so far is above that of the last quarter.
func (l *line) rises(look int) bool {
	n := max(2, (look+1)/4)
	a, b := max(0, look+1-n), min(len(l.level), look+1+n)
	if b-look-1 < n/2 {
		return true // too late to know
	}
	return mean(l.level[look+1:b]) > mean(l.level[a:look+1])*1.01+0.5
}

func mean(of []int) float64 {
	s := 0.0
	for _, n := range of {
		s += float64(n)
	}
	return s / float64(len(of))
}
