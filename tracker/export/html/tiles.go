package html

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// tile is one of the numbers at the top of the page.
type tile struct{ Name, Value, Note, ID string }

// tiles returns the tiles of a state. peak is nil if it is unknown.
func tiles(s *snapshot.Snapshot, peak *mem.Tally) []tile {
	out := []tile{{"Live", s.Live.Bytes.String(), buffers(s.Live.Count), "live"}}
	if peak != nil {
		out = append(out, tile{"Peak", peak.Bytes.String(), buffers(peak.Count), "peak"})
	}
	out = append(out,
		tile{"Allocated", s.Allocated.String(), "after rounding", "allocated"},
		tile{"Reserved", s.Reserved.String(), reservedNote(s), "reserved"},
	)
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
