package tracker_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

const (
	ms     = time.Millisecond
	second = time.Second
)

// serve is a program that answers requests of some 15 ms and leaks one in n; 0 is none.
func (w *world) serve(rate float64, n int) {
	w.requests(rate, func() {
		b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
		if n > 0 && w.oneIn(n) {
			w.forget(b)
		} else {
			w.freeAfter(5*ms+w.about(10*ms), b)
		}
	})
}

// leaky are programs that leak.
var leaky = []program{
	{"serves 160 requests a second, forgets 1 in 100", func(w *world) {
		w.serve(160, 100)
		w.run(60 * second)
	}},
	{"the same, 16 a second", func(w *world) {
		w.serve(16, 100)
		w.run(120 * second)
	}},
	{"the same, forgets 1 in 1000 of 160 a second", func(w *world) {
		w.serve(160, 1000)
		w.run(120 * second)
	}},
	{"forgets every second one", func(w *world) {
		w.serve(16, 2)
		w.run(60 * second)
	}},
	{"serves for 20 s, then nothing happens", func(w *world) {
		stop := w.now.Add(20 * second)
		w.requests(160, func() {
			if w.now.After(stop) {
				return
			}
			b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			if w.oneIn(100) {
				w.forget(b)
			} else {
				w.freeAfter(w.about(10*ms), b)
			}
		})
		w.run(60 * second)
	}},
	{"forgets none at first, 1 in 100 after 30 s", func(w *world) {
		start := w.now.Add(30 * second)
		w.requests(160, func() {
			b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			if w.now.After(start) && w.oneIn(100) {
				w.forget(b)
			} else {
				w.freeAfter(w.about(10*ms), b)
			}
		})
		w.run(60 * second)
	}},
	{"requests of 5 ms to a minute, forgets 1 in 100", func(w *world) {
		w.requests(160, func() {
			b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			if w.oneIn(100) {
				w.forget(b)
			} else {
				w.freeAfter(min(time.Minute, w.paretic(5*ms)), b)
			}
		})
		w.run(120 * second)
	}},
	{"trains, forgets one each 10 steps", func(w *world) {
		step := 0
		w.every(100*ms, func() {
			b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			if step++; step%10 == 0 {
				w.forget(b)
			} else {
				w.freeAfter(90*ms, b)
			}
		})
		w.run(200 * second)
	}},
	{"trains, forgets one each step", func(w *world) {
		w.every(100*ms, func() {
			w.forget(w.ok(w.tr.AllocBytes(alloc.KiB, tracker.Temporary)))
			for range 12 {
				w.freeAfter(90*ms, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
			}
		})
		w.run(60 * second)
	}},
	{"one helper allocates parameters, and requests of which 1 in 100 is forgotten", func(w *world) {
		allocate := func() *tracker.Buffer { return w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Unspecified)) }
		for range 200 {
			allocate()
		}
		w.requests(160, func() {
			if b := allocate(); w.oneIn(100) {
				w.forget(b)
			} else {
				w.freeAfter(w.about(10*ms), b)
			}
		})
		w.run(60 * second)
	}},
	{"a cache without a bound", func(w *world) {
		w.every(100*ms, func() {
			w.freeAfter(50*ms, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Temporary)))
			if w.oneIn(3) {
				w.forget(w.ok(w.tr.AllocBytes(alloc.KiB, tracker.Activation)))
			}
		})
		w.run(60 * second)
	}},
}

// paretic is a time of which a few are very long.
func (w *world) paretic(least time.Duration) time.Duration {
	return time.Duration(float64(least) / (1 - w.random.Float64()))
}

// steady are programs that leak nothing.
var steady = []program{
	{"serves 160 requests a second", func(w *world) {
		w.serve(160, 0)
		w.run(60 * second)
	}},
	{"one helper allocates parameters, loads them for 10 s, and serves", func(w *world) {
		allocate := func() *tracker.Buffer { return w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Unspecified)) }
		for i := range 200 {
			w.after(time.Duration(i)*50*ms, func() {
				staging := allocate()
				allocate()
				w.freeAfter(20*ms, staging)
			})
		}
		w.after(10*second, func() {
			w.requests(160, func() {
				w.freeAfter(w.about(10*ms), allocate())
			})
		})
		w.run(60 * second)
	}},
	{"trains, batches of random size", func(w *world) {
		w.every(100*ms, func() {
			for range 12 {
				w.freeAfter(90*ms, w.ok(w.tr.AllocBytes(alloc.Bytes(1+w.random.IntN(1<<20)), tracker.Activation)))
			}
		})
		w.run(60 * second)
	}},
	{"gathers gradients for 25 steps, then frees them", func(w *world) {
		var gradients []*tracker.Buffer
		w.every(100*ms, func() {
			if len(gradients) == 25 {
				w.free(gradients...)
				gradients = nil
			}
			gradients = append(gradients, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Gradient)))
		})
		w.run(120 * second)
	}},
	{"batches that grow for 10 steps and shrink for 10", func(w *world) {
		step := 0
		w.every(100*ms, func() {
			step++
			size := alloc.Bytes(1+min(step%20, 20-step%20)) * alloc.MiB
			w.freeAfter(90*ms, w.ok(w.tr.AllocBytes(size, tracker.Input)))
		})
		w.run(120 * second)
	}},
	{"a cache that fills in 3 s and stops", func(w *world) {
		n := 0
		w.every(100*ms, func() {
			w.freeAfter(50*ms, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Temporary)))
			if n++; n <= 25 {
				w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			}
		})
		w.run(120 * second)
	}},
	{"a cache of 50, of popular and rare keys", func(w *world) {
		keys := rand.NewZipf(w.random, 1.3, 1, 1<<20)
		cache, used := make(map[uint64]*tracker.Buffer), []uint64{}
		w.requests(160, func() {
			key := keys.Uint64()
			used = append(slices.DeleteFunc(used, func(k uint64) bool { return k == key }), key)
			if cache[key] == nil {
				cache[key] = w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			}
			if len(used) > 50 {
				w.free(cache[used[0]])
				delete(cache, used[0])
				used = used[1:]
			}
		})
		w.run(120 * second)
	}},
	{"a pool that keeps eight, and frees what it needs at peaks", func(w *world) {
		var pool []*tracker.Buffer
		w.requests(160, func() {
			var b *tracker.Buffer
			if n := len(pool); n > 0 {
				b, pool = pool[n-1], pool[:n-1]
			} else {
				b = w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Temporary))
			}
			w.after(20*ms+w.about(40*ms), func() {
				if len(pool) < 8 {
					pool = append(pool, b)
				} else {
					w.free(b)
				}
			})
		})
		w.run(120 * second)
	}},
	{"1 request in 100 lives a hundred times as long", func(w *world) {
		w.requests(160, func() {
			life := 5*ms + w.about(10*ms)
			if w.oneIn(100) {
				life *= 100
			}
			w.freeAfter(life, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(120 * second)
	}},
	{"requests of 5 ms to a minute", func(w *world) {
		w.requests(160, func() {
			w.freeAfter(min(time.Minute, w.paretic(5*ms)), w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(120 * second)
	}},
	{"texts of random length, 50 ms to 30 s", func(w *world) {
		w.requests(20, func() {
			life := time.Duration(float64(50*ms) * math.Pow(600, w.random.Float64()))
			w.freeAfter(life, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(240 * second)
	}},
	{"hangs for 30 s, with 16 requests under way", func(w *world) {
		start := w.now
		hangs := func(d time.Duration) bool { return 20*second < d && d < 50*second }
		w.requests(160, func() {
			now, life := w.now.Sub(start), w.about(100*ms)
			if hangs(now) {
				return
			}
			if hangs(now + life) {
				life += 30 * second
			}
			w.freeAfter(life, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(60 * second)
	}},
	{"serves by day, rests by night", func(w *world) {
		w.requests(320, func() {
			if hour := w.now.Sub(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)).Seconds() / 10; w.random.Float64() > (1+math.Sin(hour))/2 {
				return
			}
			w.freeAfter(5*ms+w.about(100*ms), w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(120 * second)
	}},
}

// early are programs that leak nothing, but cannot be told from such that do for some time.
var early = []program{
	{"1 request in 100 is a session of 20 s", func(w *world) {
		w.requests(160, func() {
			life := 5*ms + w.about(10*ms)
			if w.oneIn(100) {
				life = 20 * second
			}
			w.freeAfter(life, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation)))
		})
		w.run(200 * second)
	}},
	{"a cache that fills in 50 s and stops", func(w *world) {
		n := 0
		w.every(100*ms, func() {
			w.freeAfter(50*ms, w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Temporary)))
			if n++; n <= 500 {
				w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
			}
		})
		w.run(200 * second)
	}},
}

type program struct {
	name string
	run  func(*world)
}

var seeds = flag.Uint64("seeds", 1, "run the leak programs with so many different random numbers")

// TestLeakPrograms runs them all. The table of the first run stands in docs/leaks.md.
func TestLeakPrograms(t *testing.T) {
	var table strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&table, "| %s |\n", strings.Join(cells, " | ")) }
	row("Program of seconds", "Looks forgotten", "Growing")
	row("---", "---", "---")
	for _, part := range []struct {
		title    string
		programs []program
		check    func(*testing.T, *world)
	}{
		{"**It leaks**", leaky, func(t *testing.T, w *world) {
			assert.NotEmpty(t, w.suspects.found+w.growths.found)
			assert.Zero(t, w.suspects.wrong+w.growths.wrong, "a line that does not leak")
		}},
		{"**It leaks nothing**", steady, func(t *testing.T, w *world) {
			assert.Zero(t, w.suspects.wrong+w.growths.wrong)
		}},
		{"**It leaks nothing, but nobody can know that yet**", early, func(t *testing.T, w *world) {
			assert.Positive(t, w.suspects.wrong+w.growths.wrong)
		}},
	} {
		row(part.title, "", "")
		for _, p := range part.programs {
			t.Run(p.name, func(t *testing.T) {
				for seed := range *seeds {
					w := newWorld(t, seed)
					p.run(w)
					part.check(t, w)
					if seed == 0 {
						row(p.name, w.suspects.cell(len(w.leaks) > 0), w.growths.cell(len(w.leaks) > 0))
					}
				}
			})
		}
	}
	inDocs(t, "../docs/leaks.md", table.String())
}

// inDocs compares a table with the one of a page that begins alike.
func inDocs(t *testing.T, page, table string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the tests were taken elsewhere without the pages: see scripts/gpu-run")
	}
	require.NoError(t, err)
	header, _, _ := strings.Cut(table, "\n")
	before, rest, found := strings.Cut(string(text), header)
	require.True(t, found, "no table in %s", page)
	old, after, _ := strings.Cut(header+rest, "\n\n")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+table+"\n"+after), 0o644))
		return
	}
	assert.Equal(t, table, old+"\n", "go test -update writes it anew")
}
