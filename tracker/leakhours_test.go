package tracker_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/leakprograms"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// hours is a tracker that the leak programs of hours allocate from.
type hours struct {
	t     *testing.T
	tr    *tracker.MemTracker
	paths map[string]int
	names map[mem.Frame]string // of lines

	looks, said int
}

func newHours(t *testing.T, w *leakprograms.World) *hours {
	start := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	h := &hours{t: t, paths: make(map[string]int), names: make(map[mem.Frame]string)}
	h.tr, _ = open(t, tracker.Config{
		Device: device(t, sim.Config{Memory: alloc.TiB}), Report: io.Discard, MaxEvents: 64, Clock: func() time.Time { return start.Add(w.Now()) },
	})
	return h
}

func (h *hours) Alloc(line, path string) func() {
	n, known := h.paths[path]
	if !known {
		n = len(h.paths)
		h.paths[path] = n
	}
	b := h.by(line, n, 6)
	h.names[b.Allocation().Stack.CallSite()] = line
	return func() { require.NoError(h.t, b.Free()) }
}

// by allocates at a line, on the call path of that number.
//
//go:noinline
func (h *hours) by(line string, path, calls int) *tracker.Buffer {
	switch {
	case calls > 0 && path%2 == 0:
		return h.by(line, path/2, calls-1)
	case calls > 0:
		return h.by(line, path/2, calls-1)
	}
	switch line {
	case "input":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Input))
	case "work":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Temporary))
	case "output":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Activation))
	case "entry":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Unspecified))
	case "kv":
		return h.ok(h.tr.AllocBytes(alloc.KiB, "KVCache"))
	case "queue":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Input))
	case "graph":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Temporary))
	case "pooled":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Activation))
	case "helper":
		return h.ok(h.tr.AllocBytes(alloc.KiB, tracker.Parameter))
	}
	require.Fail(h.t, "no such line", line)
	return nil
}

func (h *hours) ok(b *tracker.Buffer, err error) *tracker.Buffer {
	require.NoError(h.t, err)
	return b
}

func (h *hours) Look() (forgotten, growing []string) {
	s := h.tr.Snapshot()
	suspects, grows := leaks.Suspects(s), leaks.Growing(s)
	for _, its := range suspects {
		forgotten = append(forgotten, h.names[its.CallSite])
	}
	for _, its := range grows {
		growing = append(growing, h.names[its.CallSite])
	}
	if h.looks++; h.looks%100 == 0 || len(forgotten)+len(growing) > h.said {
		h.said = max(h.said, len(forgotten)+len(growing))
		sameInFile(h.t, h.tr, suspects, grows)
	}
	return forgotten, growing
}

// sameInFile holds that a dump says of leaks what its program said.
func sameInFile(t *testing.T, tr *tracker.MemTracker, suspects []leaks.Suspect, growing []leaks.Suspect) {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&file))
	d, err := snapshot.ReadDump(&file)
	require.NoError(t, err)
	require.Equal(t, suspects, leaks.Suspects(d.Snapshot))
	require.Equal(t, growing, leaks.Growing(d.Snapshot))
}

// runHours runs the program of that number against a tracker of its own.
func runHours(t *testing.T, seed uint64, program int, hours float64, look time.Duration) (forgotten, growing leakprograms.Verdict) {
	w := leakprograms.New(seed, program)
	return w.Run(newHours(t, w), leakprograms.All[program], hours, look)
}

// TestLeaksOfHours runs each program once, as long as it takes to find its leak, or a third of its time.
func TestLeaksOfHours(t *testing.T) {
	long.Test(t, "simulates days of a service")
	long.Test(t, "simulates days of a service")
	if *trackertest.Long {
		t.Skip("TestTableOfHours does more")
	}
	for i, p := range leakprograms.All {
		if cachetest.RaceDetector && i%7 != 0 {
			continue // each has one goroutine: some are enough, beside each other
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			want, leaks := leakprograms.Wants[p.Name]
			require.Equal(t, p.Kind == leakprograms.Leaks, leaks)
			hours := p.Hours / 3
			if leaks {
				hours = min(p.Hours, p.Begins+1.5*max(want.Forgotten, want.Growing).Hours()+0.1)
			}
			look := max(30*time.Second, time.Duration(hours/120*float64(time.Hour)))
			f, g := runHours(t, 0, i, hours, look)
			if !leakprograms.CannotKnow[p.Name] {
				assert.Zero(t, f.Wrong+f.Rising, "named as forgotten")
			}
			assert.LessOrEqual(t, g.Wrong, g.Looks/10, "named as growing")
			if leaks {
				assert.Zero(t, g.Wrong)
				foundBy(t, "forgotten", f, want.Forgotten, look)
				foundBy(t, "growing", g, want.Growing, look)
			}
		})
	}
}

// foundBy compares a verdict with what it must reach: 0 is never.
func foundBy(t *testing.T, what string, v leakprograms.Verdict, want, look time.Duration) {
	t.Helper()
	t.Logf("%s: %v, %d lost, named at %d of %d looks", what, v.Found, v.Lost, v.Held, v.After)
	switch {
	case want == 0:
		assert.Negative(t, v.Found, what)
	case v.Found < 0:
		assert.Fail(t, "never found", what)
	default:
		assert.LessOrEqual(t, v.Found, 3*want/2+2*look, what)
	}
}

// TestTableOfHours runs the programs to their end, with six seeds and a look each half minute. The table of what a
// tracker finds stands in docs/leaks.md.
func TestTableOfHours(t *testing.T) {
	if !*trackertest.Long {
		t.Skip("takes minutes: -long")
	}
	const seeds = 6
	var table strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&table, "| %s |\n", strings.Join(cells, " | ")) }
	row("Program", "Hours", "Looks forgotten", "Growing")
	row("---", "---", "---", "---")
	var looks, wrongForgotten, wrongGrowing int
	for _, kind := range []leakprograms.Kind{leakprograms.Leaks, leakprograms.Steady, leakprograms.Fills} {
		row("**"+string(kind)+"**", "", "", "")
		for i, p := range leakprograms.All {
			if p.Kind != kind {
				continue
			}
			var f, g []leakprograms.Verdict
			for seed := range uint64(seeds) {
				forgotten, growing := runHours(t, seed, i, p.Hours, 30*time.Second)
				f, g = append(f, forgotten), append(g, growing)
				looks += growing.Looks
				wrongGrowing += growing.Wrong
				if !leakprograms.CannotKnow[p.Name] {
					wrongForgotten += forgotten.Wrong + forgotten.Rising
				}
			}
			if kind != leakprograms.Leaks {
				row(p.Name, fmt.Sprintf("%.0f", p.Hours), alarms(f), alarms(g))
				continue
			}
			want := leakprograms.Wants[p.Name]
			row(p.Name, fmt.Sprintf("%.0f", p.Hours), median(t, p.Name, f, want.Forgotten), median(t, p.Name, g, want.Growing))
		}
	}
	t.Logf("%d looks; growing %d times while the level did not rise", looks, wrongGrowing)
	assert.Zero(t, wrongForgotten, "named as forgotten")
	assert.LessOrEqual(t, 20_000*wrongGrowing, 13*looks, "named as growing, at %d of %d looks, while the level did not rise", wrongGrowing, looks)
	inDocs(t, "../docs/leaks.md", table.String())
}

// median says when a leak was found, and how many buffers were lost by then.
func median(t *testing.T, name string, vs []leakprograms.Verdict, want time.Duration) string {
	slices.SortFunc(vs, func(a, b leakprograms.Verdict) int {
		return cmp.Or(cmp.Compare(uint64(a.Found), uint64(b.Found)), cmp.Compare(a.Lost, b.Lost)) // never is last
	})
	v := vs[len(vs)/2]
	if v.Found < 0 {
		assert.Zero(t, want, name)
		return "never"
	}
	assert.LessOrEqual(t, v.Found, want, name)
	return fmt.Sprintf("after %s, %d lost", short(v.Found), v.Lost)
}

// alarms says how many looks named a line that does not leak.
func alarms(vs []leakprograms.Verdict) string {
	var wrong, rising, looks int
	for _, v := range vs {
		wrong, rising, looks = wrong+v.Wrong, rising+v.Rising, looks+v.Looks
	}
	if wrong+rising == 0 {
		return "silent"
	}
	return fmt.Sprintf("at %d of %d looks, %d while it rose", wrong+rising, looks, rising)
}

func short(d time.Duration) string {
	if d < 90*time.Minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
