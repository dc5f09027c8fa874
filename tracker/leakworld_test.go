package tracker_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// world runs a program in a time of its own, and asks for leaks all the while.
type world struct {
	t      *testing.T
	tr     *tracker.MemTracker
	random *rand.Rand
	now    time.Time
	plans  []plan             // sooner first
	leaks  map[mem.Frame]bool // lines that leak

	suspects, growths verdicts
}

// verdicts is what one way to find leaks said.
type verdicts struct {
	checks, wrong int
	found         string // when it first told of a leak
}

func (v *verdicts) add(sites []mem.Frame, leaks map[mem.Frame]bool, when string) {
	v.checks++
	if slices.ContainsFunc(sites, func(site mem.Frame) bool { return !leaks[site] }) {
		v.wrong++
	}
	if v.found == "" && slices.ContainsFunc(sites, func(site mem.Frame) bool { return leaks[site] }) {
		v.found = when
	}
}

// cell prints them for the table.
func (v verdicts) cell(leaks bool) string {
	switch {
	case v.wrong > 0:
		return fmt.Sprintf("false alarm at %d of %d looks", v.wrong, v.checks)
	case v.found != "":
		return "found " + v.found
	case leaks:
		return "not found"
	default:
		return "silent"
	}
}

// plan is something that will happen.
type plan struct {
	at time.Time
	do func()
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 2)), leaks: make(map[mem.Frame]bool),
		now: time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC),
	}
	w.tr, _ = open(t, tracker.Config{
		Device: device(t, sim.Config{Memory: alloc.TiB}), Report: io.Discard,
		Clock: func() time.Time { return w.now },
	})
	return w
}

// run lets some time pass, and looks for leaks each second.
func (w *world) run(d time.Duration) {
	start := w.now
	w.every(time.Second, func() {
		when := "after " + text.Duration(w.now.Sub(start))
		var suspects, growths []mem.Frame
		s := w.tr.Snapshot()
		for _, its := range leaks.Suspects(s) {
			suspects = append(suspects, its.CallSite)
		}
		for _, its := range leaks.Growing(s) {
			growths = append(growths, its.CallSite)
		}
		w.suspects.add(suspects, w.leaks, when)
		w.growths.add(growths, w.leaks, when)
	})
	for len(w.plans) > 0 && !w.plans[0].at.After(start.Add(d)) {
		next := w.plans[0]
		w.plans = slices.Delete(w.plans, 0, 1)
		w.now = next.at
		next.do()
	}
}

func (w *world) after(d time.Duration, do func()) {
	at := w.now.Add(d)
	i := sort.Search(len(w.plans), func(i int) bool { return w.plans[i].at.After(at) })
	w.plans = slices.Insert(w.plans, i, plan{at, do})
}

// every has something happen again and again. It is not inlined into itself: each time
// the way there is the same.
//
//go:noinline
func (w *world) every(d time.Duration, do func()) {
	w.after(d, func() {
		do()
		w.every(d, do)
	})
}

// requests has something happen at random, so many times a second.
func (w *world) requests(rate float64, do func()) {
	w.after(w.about(time.Duration(float64(time.Second)/rate)), func() {
		do()
		w.requests(rate, do)
	})
}

// about is a random time with that mean.
func (w *world) about(mean time.Duration) time.Duration {
	return time.Duration(w.random.ExpFloat64() * float64(mean))
}

// oneIn is true one time in n.
func (w *world) oneIn(n int) bool { return w.random.IntN(n) == 0 }

// ok returns a buffer that was allocated.
func (w *world) ok(b *tracker.Buffer, err error) *tracker.Buffer {
	require.NoError(w.t, err)
	return b
}

func (w *world) free(buffers ...*tracker.Buffer) {
	for _, b := range buffers {
		require.NoError(w.t, b.Free())
	}
}

// freeAfter frees a buffer later.
func (w *world) freeAfter(d time.Duration, b *tracker.Buffer) { w.after(d, func() { w.free(b) }) }

// forget leaks a buffer.
func (w *world) forget(b *tracker.Buffer) { w.leaks[b.Allocation().Stack.CallSite()] = true }
