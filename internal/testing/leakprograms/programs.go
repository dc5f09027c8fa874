package leakprograms

import (
	"container/list"
	"math"
	"math/rand/v2"
)

// Program is what a World runs.
type Program struct {
	Name  string
	Kind  Kind
	Hours float64 // that it takes to tell
	// Begins says after how many hours the leak begins.
	Begins float64
	run    func(*World)
}

// Kind says what there is to find.
type Kind string

const (
	Leaks  Kind = "it leaks"
	Fills  Kind = "it fills" // and then no more
	Steady Kind = "it leaks nothing"
)

// zipfCache is a cache without a bound; one hit in n refreshes.
func zipfCache(refresh int) func(*World) {
	return func(w *World) {
		w.leaky(0, "entry")
		cache := map[uint64]*buf{}
		z := rand.NewZipf(w.r, 1.1, 20, 1<<40)
		w.each(0.25, func() {
			k := z.Uint64()
			if b := cache[k]; b != nil {
				if refresh == 0 || !w.oneIn(refresh) {
					return
				}
				b.free()
			} else {
				w.lost++
			}
			cache[k] = w.alloc("entry", "c")
		})
	}
}

// linearCache gains one entry a second; a share replaced of it replaces a random one.
func linearCache(replaced float64) func(*World) {
	return func(w *World) {
		w.leaky(0, "entry")
		var all []*buf
		w.every(1, func() {
			if len(all) > 0 && w.r.Float64() < replaced {
				i := w.r.IntN(len(all))
				all[i].free()
				all[i] = w.alloc("entry", "c")
			}
			all = append(all, w.alloc("entry", "c"))
			w.lost++
		})
	}
}

// lru is a cache of so many; keys from z; refresh as above.
func lru(w *World, bound int, mean float64, key func() uint64, refresh int, line, stack string) {
	type node struct {
		k uint64
		b *buf
	}
	order := list.New()
	at := map[uint64]*list.Element{}
	w.each(mean, func() {
		k := key()
		if e := at[k]; e != nil {
			order.MoveToFront(e)
			if refresh > 0 && w.oneIn(refresh) {
				n := e.Value.(*node)
				n.b.free()
				n.b = w.alloc(line, stack)
			}
			return
		}
		if order.Len() >= bound {
			e := order.Back()
			n := e.Value.(*node)
			n.b.free()
			delete(at, n.k)
			order.Remove(e)
		}
		at[k] = order.PushFront(&node{k, w.alloc(line, stack)})
	})
}

// daily runs f at a mean distance of mean at the busiest time of the day, and 20 times rarer at night.
func (w *World) daily(mean float64, f func()) {
	w.each(mean, func() {
		if w.r.Float64() < 0.05+0.95*(1+math.Sin(2*math.Pi*w.now/86400))/2 {
			f()
		}
	})
}
func (w *World) session() float64 { return min(3*3600, max(10, w.logn(180, 1.6))) }
func (w *World) params(line string, n int) {
	for i := range n {
		w.after(float64(i)*0.05, func() { w.alloc(line, "params") })
	}
}

// All are the programs.
var All = []Program{
	{"10 requests a second, 1 in 400 forgotten on an error path", Leaks, 2, 0, func(w *World) {
		w.leaky(0, "input", "work")
		w.each(0.1, func() {
			a, b := w.alloc("input", "r"), w.alloc("work", "r")
			if w.oneIn(400) {
				w.lost += 2
				return
			}
			w.freeAfter(w.logn(0.3, 1), a, b, w.alloc("output", "r"))
		})
	}},
	{"a cache without a bound, refreshes 1 hit in 2", Leaks, 4, 0, zipfCache(2)},
	{"a cache without a bound, refreshes 1 hit in 5", Leaks, 4, 0, zipfCache(5)},
	{"a cache without a bound, refreshes 1 hit in 20", Leaks, 4, 0, zipfCache(20)},
	{"a cache without a bound, refreshes nothing", Leaks, 4, 0, zipfCache(0)},
	{"a cache that adds 1 a second, and replaces 1 for each 20 that it adds", Leaks, 4, 0, linearCache(0.05)},
	{"a cache that adds 1 a second, and replaces 1 for each 2 that it adds", Leaks, 4, 0, linearCache(0.5)},
	{"16 workers; every 5 min or so one gets stuck for 10 s and forgets its buffers, on a call path of its own", Leaks, 3, 0, func(w *World) {
		w.leaky(0, "input", "work")
		var worker func()
		worker = func() {
			if w.r.Float64() < 1.0/1600 {
				w.alloc("input", "stuck")
				w.alloc("work", "stuck")
				w.lost += 2
				w.after(10, worker)
				return
			}
			d := w.logn(2.5, 0.5)
			w.freeAfter(d, w.alloc("input", "r"), w.alloc("work", "r"))
			w.after(d, worker)
		}
		for range 16 {
			w.after(w.exp(1), worker)
		}
	}},
	{"streams of 1 s to 5 min, 1 in 70 forgotten", Leaks, 6, 0, func(w *World) {
		w.leaky(0, "kv")
		w.each(1.5, func() {
			d := min(300, max(1, w.logn(20, 1.2)))
			pages := 2.0
			b := w.alloc("kv", "open")
			end := w.now + d
			cancel := w.oneIn(70)
			var grow func()
			grow = func() {
				if cancel && w.now > end-d/2 {
					w.lost++
					return
				}
				if w.now >= end {
					b.free()
					return
				}
				if w.oneIn(3) && pages < 64 {
					b.free()
					pages *= 2
					b = w.alloc("kv", "grow")
				}
				w.after(min(end-w.now, 5), grow)
			}
			grow()
		})
	}},
	{"2 requests a second, 1 in 100 forgotten from the second day on", Leaks, 32, 24, func(w *World) {
		w.leaky(86400, "input")
		w.each(0.5, func() {
			b := w.alloc("input", "r")
			if w.now > 86400 && w.oneIn(100) {
				w.lost++
				return
			}
			w.freeAfter(w.logn(0.3, 1), b)
		})
	}},
	{"one line for parameters, 5 requests a second, and a call path that leaks 1 every 2 min", Leaks, 6, 0, func(w *World) {
		w.leaky(0, "helper")
		w.params("helper", 200)
		w.each(0.2, func() { w.freeAfter(w.logn(0.3, 1), w.alloc("helper", "r")) })
		w.each(120, func() { w.alloc("helper", "leak"); w.lost++ })
	}},
	{"one line for sessions of 10 s to 3 h, and for 1 request a second, of which 1 in 200 is forgotten", Leaks, 12, 0, func(w *World) {
		w.leaky(0, "helper")
		w.each(8, func() { w.freeAfter(w.session(), w.alloc("helper", "session")) })
		w.each(1, func() {
			b := w.alloc("helper", "r")
			if w.oneIn(200) {
				w.lost++
				return
			}
			w.freeAfter(w.logn(0.3, 1), b)
		})
	}},
	{"sessions, many by day and few by night, 1 in 300 forgotten", Leaks, 48, 0, func(w *World) {
		w.leaky(0, "kv")
		w.daily(4, func() {
			b := w.alloc("kv", "s")
			if w.oneIn(300) {
				w.lost++
				return
			}
			w.freeAfter(w.session(), b)
		})
	}},

	{"a call path that never frees leaks 1 every 2 min, from the second day on", Leaks, 48, 24, func(w *World) {
		w.leaky(86400, "helper")
		w.params("helper", 200)
		w.each(1, func() { w.freeAfter(w.logn(0.3, 1), w.alloc("helper", "r")) })
		w.after(86400, func() { w.each(120, func() { w.alloc("helper", "leak"); w.lost++ }) })
	}},
	{"64 call paths to one line, 5 requests a second, 1 in 400 forgotten", Leaks, 4, 0, func(w *World) {
		w.each(0.2, func() {
			s := "p" + string(rune('0'+w.r.IntN(64)))
			w.leaky(0, "work")
			b := w.alloc("work", s)
			if w.oneIn(400) {
				w.lost++
				return
			}
			w.freeAfter(w.logn(0.3, 1), b)
		})
	}},
	{"1 request every 5 s, every second one forgotten", Leaks, 4, 0, func(w *World) {
		w.leaky(0, "work")
		w.each(5, func() {
			b := w.alloc("work", "r")
			if w.oneIn(2) {
				w.lost++
				return
			}
			w.freeAfter(w.logn(0.3, 1), b)
		})
	}},

	{"an LRU cache of 500, many rare keys, refreshes 1 hit in 3", Steady, 24, 0, func(w *World) {
		z := rand.NewZipf(w.r, 1.05, 5, 1<<30)
		lru(w, 500, 0.5, z.Uint64, 3, "entry", "c")
	}},
	{"every 2 h, for 10 min, 1 request in 20 waits until these are over", Steady, 12, 0, func(w *World) {
		w.each(0.5, func() {
			d := w.logn(0.5, 0.7)
			if p := math.Mod(w.now+600, 7200); p > 6600 && w.oneIn(20) {
				d += (7200 - p) + w.r.Float64()*60
			}
			w.freeAfter(d, w.alloc("queue", "r"))
		})
	}},
	{"an LRU cache of 500, popular and rare keys", Steady, 8, 0, func(w *World) {
		z := rand.NewZipf(w.r, 1.2, 30, 1<<20)
		lru(w, 500, 0.1, z.Uint64, 0, "entry", "c")
	}},
	{"a start that captures a graph for each batch size", Fills, 8, 0, func(w *World) {
		graphs := map[int]bool{}
		w.each(0.05, func() {
			n := min(255, int(w.logn(20, 1)))
			if !graphs[n] {
				graphs[n] = true
				w.alloc("graph", "first")
				w.alloc("pooled", "first")
			}
			w.freeAfter(w.logn(0.04, 0.7), w.alloc("pooled", "r"))
		})
	}},
	{"a batch of 8 min every 30 min, beside requests", Steady, 12, 0, func(w *World) {
		w.each(0.12, func() { w.freeAfter(w.logn(0.06, 0.8), w.alloc("pooled", "r")) })
		w.every(1800, func() {
			end := w.now + 480
			var step func()
			step = func() {
				if w.now < end {
					w.freeAfter(end-w.now, w.alloc("pooled", "batch"))
					w.after(w.exp(4), step)
				}
			}
			step()
		})
	}},
	{"sessions of 10 s to 3 h", Steady, 48, 0, func(w *World) {
		w.each(4, func() { w.freeAfter(w.session(), w.alloc("kv", "s")) })
	}},
	{"sessions, many by day and few by night", Steady, 72, 0, func(w *World) {
		w.daily(4, func() { w.freeAfter(w.session(), w.alloc("kv", "s")) })
		w.daily(0.5, func() { w.freeAfter(w.logn(0.3, 1), w.alloc("input", "r")) })
	}},
	{"an LRU cache of 5,000, always new keys, full after 2.8 h", Fills, 12, 0, func(w *World) {
		n := uint64(0)
		lru(w, 5000, 2, func() uint64 { n++; return n }, 0, "entry", "c")
	}},
	{"an LRU cache of 4,000, refreshes 1 hit in 5, full after hours", Fills, 12, 0, func(w *World) {
		z := rand.NewZipf(w.r, 1.1, 20, 1<<40)
		lru(w, 4000, 1, z.Uint64, 5, "entry", "c")
	}},
	{"every 2 h, a queue backs up for 10 min", Steady, 12, 0, func(w *World) {
		w.each(0.5, func() {
			d := w.logn(0.5, 0.7)
			if p := math.Mod(w.now+600, 7200); p > 6600 {
				d += (7200 - p) + w.r.Float64()*60
			}
			w.freeAfter(d, w.alloc("queue", "r"))
		})
	}},
	{"two buffers for the whole run, replaced when they are too small, on a line with requests", Steady, 8, 0, func(w *World) {
		var pair [2]*buf
		most := 0.0
		w.each(0.2, func() {
			if n := math.Ceil(w.logn(20, 1)); n > most {
				most = n
				for i := range pair {
					if pair[i] != nil {
						pair[i].free()
					}
					pair[i] = w.alloc("helper", "pair")
				}
			}
			w.freeAfter(w.logn(0.2, 1), w.alloc("helper", "r"))
		})
	}},
	{"a cache that adds 1 a second and drops each after 1 h", Fills, 12, 0, func(w *World) {
		w.each(1, func() { w.freeAfter(3600, w.alloc("entry", "c")) })
	}},
	{"1 request in 100 is a session of exactly 2 h", Fills, 24, 0, func(w *World) {
		w.each(1, func() {
			d := w.logn(0.3, 1)
			if w.oneIn(100) {
				d = 7200
			}
			w.freeAfter(d, w.alloc("input", "r"))
		})
	}},
	{"a model of 200 buffers, loaded again every 2 h", Steady, 24, 0, func(w *World) {
		var model []*buf
		load := func() {
			for _, b := range model {
				b.free()
			}
			model = nil
			for range 200 {
				model = append(model, w.alloc("helper", "load"))
			}
		}
		w.after(1, load)
		w.every(7200, load)
		w.each(0.2, func() { w.freeAfter(w.logn(0.3, 1), w.alloc("helper", "r")) })
	}},
}
