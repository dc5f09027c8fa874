package tables

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Follower follows the levels of lines of code from mark to mark, for a source that has marks.
// Growth uses its results. It is for one goroutine at a time.
type Follower struct {
	warmup int
	warm   time.Duration // the warm-up's last mark
	marks  int           // since
	lines  map[mem.Frame]*Series
}

// maxFollowed bounds the lines.
const maxFollowed = 1024

// NewFollower returns a Follower that ignores the given number of marks at the start.
func NewFollower(warmup int) *Follower {
	return &Follower{warmup: max(0, warmup), lines: make(map[mem.Frame]*Series)}
}

// Note adds a change at a line since the previous mark.
func (f *Follower) Note(site mem.Frame, change mem.Tally) {
	s := f.lines[site]
	if s == nil {
		f.makeRoom()
		s = NewSeries()
		f.lines[site] = s
	}
	s.Hold(f.marks)
	s.Level = s.Level.Add(change)
}

// Mark ends the mark with that number and time.
func (f *Follower) Mark(seq int, now time.Duration) {
	if seq <= f.warmup {
		f.warm = now
	}
	f.marks = max(0, seq-f.warmup)
}

// makeRoom drops the half of the lines that hold least, when there are too many. A
// line that is dropped and changes again is followed from there.
func (f *Follower) makeRoom() {
	if len(f.lines) < maxFollowed {
		return
	}
	least := slices.SortedFunc(maps.Keys(f.lines), func(x, y mem.Frame) int {
		return cmp.Compare(f.lines[x].Level.Bytes, f.lines[y].Level.Bytes)
	})
	for _, site := range least[:maxFollowed/2] {
		delete(f.lines, site)
	}
}

// Growing returns copies of the series that grow, and the time of the last ignored mark: the
// fields Growing and Warm of Tables.
func (f *Follower) Growing() (found map[mem.Frame]*Series, warm time.Duration) {
	found = make(map[mem.Frame]*Series)
	for site, s := range f.lines {
		s.Hold(f.marks)
		if s.Grows() {
			its := *s
			found[site] = &its
		}
	}
	return found, f.warm
}
