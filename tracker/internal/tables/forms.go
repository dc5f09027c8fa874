package tables

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// LifetimesJSON is the JSON form of the Lifetimes of a line of code.
type LifetimesJSON struct {
	Site mem.Frame `json:"site"`
	Ages []uint32  `json:"ages"` // how many lived less than 2^10 ns, 2^11 ns and so on
	Last uint64    `json:"last"` // number of the event in which the last one was freed
}

// SeriesJSON is the JSON form of the Series of a line of code.
type SeriesJSON struct {
	Site  mem.Frame   `json:"site"`
	Level mem.Tally   `json:"level"`
	Marks int         `json:"marks"`
	Width int         `json:"width"` // marks a window
	Low   []mem.Tally `json:"low"`
}

func (t *Tables) LifetimesJSON() []LifetimesJSON {
	lines := make([]LifetimesJSON, 0, len(t.Lifetimes))
	for site, l := range t.Lifetimes {
		used := len(l.ages)
		for used > 0 && l.ages[used-1] == 0 {
			used--
		}
		lines = append(lines, LifetimesJSON{site, l.ages[:used], l.last})
	}
	slices.SortFunc(lines, func(x, y LifetimesJSON) int { return x.Site.Compare(y.Site) })
	return lines
}

func (t *Tables) SeriesJSON() []SeriesJSON {
	lines := make([]SeriesJSON, 0, len(t.Growing))
	for site, s := range t.Growing {
		lines = append(lines, SeriesJSON{site, s.Level, s.marks, s.width, s.low[:s.windows()]})
	}
	slices.SortFunc(lines, func(x, y SeriesJSON) int { return x.Site.Compare(y.Site) })
	return lines
}

// Load returns the lifetimes that a file tells of.
func (in LifetimesJSON) Load() (*Lifetimes, error) {
	l := &Lifetimes{last: in.Last}
	if len(in.Ages) > len(l.ages) || in.Last == 0 {
		return nil, fmt.Errorf("%d ages, the last of event %d", len(in.Ages), in.Last)
	}
	copy(l.ages[:], in.Ages)
	return l, nil
}

// Load returns the series that a file tells of.
func (in SeriesJSON) Load() (*Series, error) {
	s := &Series{Level: in.Level, marks: in.Marks, width: in.Width}
	if in.Width < 1 || in.Marks < 0 || len(in.Low) > windows || len(in.Low) != s.windows() {
		return nil, fmt.Errorf("%d low-water marks, of %d marks each, for %d marks", len(in.Low), in.Width, in.Marks)
	}
	copy(s.low[:], in.Low)
	return s, nil
}
