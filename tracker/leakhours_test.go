package tracker_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/leakprograms"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// hours is a tracker that the leak programs of hours allocate from.
type hours struct {
	t     *testing.T
	tr    *tracker.MemTracker
	paths map[string]int
	names map[mem.Frame]string // of lines
}

func newHours(t *testing.T, w *leakprograms.World) *hours {
	start := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	h := &hours{t: t, paths: make(map[string]int), names: make(map[mem.Frame]string)}
	h.tr, _ = open(t, tracker.Config{
		Device: device(t, sim.Config{Memory: alloc.TiB}), Report: io.Discard, Clock: func() time.Time { return start.Add(w.Now()) },
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
	h.names[b.Stack().CallSite()] = line
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
	for _, its := range leaks.Suspects(s) {
		forgotten = append(forgotten, h.names[its.CallSite])
	}
	for _, its := range leaks.Growing(s) {
		growing = append(growing, h.names[its.CallSite])
	}
	return forgotten, growing
}

// TestLeaksOfHours: a tracker finds leaks when the statistics say that it can. Package survival tries all programs.
func TestLeaksOfHours(t *testing.T) {
	for i, p := range leakprograms.All {
		want := leakprograms.Wants[p.Name]
		last := max(want.Forgotten, want.Growing)
		if p.Kind != leakprograms.Leaks || p.Begins > 0 || last > time.Hour {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			w := leakprograms.New(0, i)
			look := max(30*time.Second, last/30)
			forgotten, growing := w.Run(newHours(t, w), p, 1.5*last.Hours()+0.1, look)
			for _, test := range []struct {
				what string
				of   leakprograms.Verdict
				want time.Duration
			}{{"forgotten", forgotten, want.Forgotten}, {"growing", growing, want.Growing}} {
				assert.Zero(t, test.of.Wrong+test.of.Rising, "a line that does not leak is %s", test.what)
				if test.want == 0 {
					assert.Negative(t, test.of.Found, test.what)
					continue
				}
				assert.GreaterOrEqual(t, test.of.Found, time.Duration(0), test.what)
				assert.LessOrEqual(t, test.of.Found, 3*test.want/2+2*look, test.what)
			}
		})
	}
}
