package tracker

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// VerifyNoLeaks fails the test if buffers of the tracker are live:
//
//	defer tracker.VerifyNoLeaks(t, tr)
//
// The failure lists each leak with its count and the call stack that allocated it. A tracker
// that is nil or closed fails the test too.
func VerifyNoLeaks(t interface{ Errorf(string, ...any) }, tr *MemTracker, opts ...leaks.Option) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	if cannotTell(t, tr) {
		return
	}
	found := tr.Leaks(opts...)
	if len(found) == 0 {
		return
	}
	var sum mem.Tally
	var text strings.Builder
	for _, l := range found {
		sum = sum.Add(l.Tally)
		text.WriteString("\n" + l.String())
	}
	t.Errorf("device memory was not freed: %v\n%s", sum, text.String())
}

// LimitPeak fails the test if more than limit was live at one moment since the tracker's start
// or its last ResetPeak, in requested bytes:
//
//	defer tracker.LimitPeak(t, tr, 24*alloc.MiB)
//
// The failure lists the lines of code with most memory at the peak. A tracker that is nil or
// closed fails the test too.
func LimitPeak(t interface{ Errorf(string, ...any) }, tr *MemTracker, limit alloc.Bytes) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	if cannotTell(t, tr) {
		return
	}
	s := tr.LightSnapshot()
	if s.Peak.Bytes <= limit {
		return
	}
	var text strings.Builder
	for _, site := range byLine(s.CallSites(), func(site snapshot.CallSiteStats) mem.Tally { return site.Peak }) {
		text.WriteString("\n\t" + site.String())
	}
	t.Errorf("peak of device memory: %v, %v above the limit of %v; live at the peak:%s",
		s.Peak, s.Peak.Bytes-limit, limit, text.String())
}

// cannotTell fails a test that asks no tracker, or one that is closed: either would
// pass any.
func cannotTell(t interface{ Errorf(string, ...any) }, tr *MemTracker) bool {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	switch {
	case tr == nil:
		t.Errorf("there is no tracker to ask: it is nil")
	case tr.closed.Load():
		t.Errorf("the tracker is closed already and knows of no memory: ask it before Close (deferred calls run last one first)")
	default:
		return false
	}
	return true
}

// helper is a test that reports a failure at the caller of the functions that have
// called Helper, each for itself.
type helper interface{ Helper() }

// byLine adds up one tally of each call stack by call site, and sorts the larger ones first.
func byLine(sites iter.Seq[snapshot.CallSiteStats], of func(snapshot.CallSiteStats) mem.Tally) []mem.CallSiteTally {
	sums := make(map[mem.Frame]mem.Tally)
	for site := range sites {
		if n := of(site); !n.IsZero() {
			sums[site.CallSite] = sums[site.CallSite].Add(n)
		}
	}
	lines := make([]mem.CallSiteTally, 0, len(sums))
	for frame, sum := range sums {
		lines = append(lines, mem.CallSiteTally{Frame: frame, Tally: sum})
	}
	slices.SortFunc(lines, func(x, y mem.CallSiteTally) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), tables.CompareFrames(x.Frame, y.Frame))
	})
	return lines
}
