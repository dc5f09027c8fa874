package html

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// tile is one of the numbers at the top of the page.
type tile struct{ Name, Value, Note, ID string }

// share is a kind's part of the live bytes.
type share struct {
	Kind    string
	Colour  template.CSS
	Value   string
	Percent float64
}

func tiles(s *snapshot.Snapshot, peak mem.Tally) []tile {
	out := []tile{
		{"Live", s.Live.Bytes.String(), buffers(s.Live.Count), "live"},
		{"Peak", peak.Bytes.String(), buffers(peak.Count), "peak"},
		{"Allocated", s.Allocated.String(), "after rounding", "allocated"},
		{"Reserved", s.Reserved.String(), reservedNote(s), "reserved"},
	}
	if s.DriverUsed >= 0 {
		out = append(out, tile{"Driver used", s.DriverUsed.String(), "of " + s.DriverTotal.String(), "driver"})
	}
	if s.Untracked() >= 0 {
		out = append(out, tile{"Untracked", s.Untracked().String(), "context, libraries, others", "untracked"})
	}
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m != alloc.DeviceMemory && !live.IsZero() {
			note := "part of live"
			if m.OnHost() {
				note = "on the host"
			}
			out = append(out, tile{capital(m.String()), live.Bytes.String(), buffers(live.Count) + ", " + note, m.String()})
		}
	}
	return out
}

func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

func reservedNote(s *snapshot.Snapshot) string {
	if s.Cache == nil {
		return "held from the driver"
	}
	pending := ""
	if s.Pending > 0 {
		pending = fmt.Sprintf("; %v pending, in use on other streams", s.Pending)
	}
	inactive := s.Cache.Inactive.Bytes.Current
	if inactive == 0 {
		return "all of it in use" + pending
	}
	return fmt.Sprintf("%v inactive, at most %v in a piece", inactive, s.Cache.LargestInactive) + pending
}

func buffers(n int64) string {
	if n == 1 {
		return "1 buffer"
	}
	return fmt.Sprintf("%d buffers", n)
}

// kinds returns the kinds' shares of what is live.
func (w *writing) kinds(live []*group, all alloc.Bytes) (out []share) {
	sums := make(map[string]alloc.Bytes)
	var order []string
	for _, g := range live {
		if sums[g.kind] == 0 {
			order = append(order, g.kind)
		}
		sums[g.kind] += g.sum.Bytes
	}
	slices.SortStableFunc(order, func(x, y string) int { return int(max(-1, min(1, sums[y]-sums[x]))) })
	for _, kind := range order[:min(len(order), w.lines)] {
		if b := sums[kind]; b > 0 {
			out = append(out, share{w.text(kind), webpage.KindColour(kind), b.String(), percent(b, all)})
		}
	}
	return out
}

func percent(part, whole alloc.Bytes) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
