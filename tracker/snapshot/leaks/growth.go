package leaks

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// growing is why a line is suspicious that holds ever more old buffers: a leak, a cache, a start that goes on. It is
// not known whether there is a bound.
type growing struct {
	// Age is the age from which a buffer counts as old here. Freed counts the buffers that became
	// old and were freed since.
	Age   time.Duration `json:"age_ns"`
	Freed int64         `json:"freed_since"`
	// Hourly is how many more old ones there are each hour lately, and AtFirst how many
	// more there were each hour at first: if that was more, the growth slows down.
	Hourly  float64 `json:"hourly"`
	AtFirst float64 `json:"hourly_at_first"`
}

func (g *growing) describe(old mem.Tally) string {
	return fmt.Sprintf("growing, not yet known whether bounded: %v; %s of %s that became older than %s were freed; %s",
		old, grouped(g.Freed), grouped(old.Count+g.Freed), text.Duration(g.Age), rates(g.Hourly, g.AtFirst))
}

// rates prints how many more there are each hour, day or minute, and at first if that was much more.
func rates(hourly, first float64) string {
	per, unit := 1., "hour"
	switch {
	case hourly < 2:
		per, unit = 24, "day"
	case hourly >= 100_000:
		per, unit = 1./60, "minute"
	}
	rate := fmt.Sprintf("%s more each %s lately", twoDigits(per*hourly), unit)
	if first > 1.25*hourly {
		rate += fmt.Sprintf(" (%s at first)", twoDigits(per*first))
	}
	return rate
}

// twoDigits prints a number with two digits that count: "8,300", "1.2".
func twoDigits(n float64) string {
	if n < 10 {
		return fmt.Sprintf("%.2g", n)
	}
	scale := 1.
	for n/scale >= 100 {
		scale *= 10
	}
	return grouped(int64(n/scale+0.5) * int64(scale))
}

// Growing returns the lines of code that hold ever more old buffers, steeper ones first: leaks, and what
// is not yet known to have a bound. A light snapshot has none, nor one of a source that
// does not count how long freed buffers lived.
//
// The time since the program's start is divided into 32 to 64 windows of equal length. A buffer is old if it has lived
// for an eighth of them; a sixteenth and a quarter are tried too. What counts is how many old ones there are at the
// end of each window, so what is taken and freed again does not. A line, or one call path to it, grows if,
// over all windows or over the latest half or quarter of them,
//
//   - the number of old ones rose at least eight times, and by eight buffers,
//   - all falls together are at most an eighth of all rises,
//   - the last quarter of the windows brought at least a fifth of the gain,
//   - at most half of those that became old were freed since,
//   - and the lowest number of all buffers rose too, by a quarter of the gain.
//
// A path does not grow if the line's other paths have freed as much lately, half at least: it replaces what they allocated.
//
// So it takes half a minute at least. What begins late is found when it has lasted for a quarter of
// the program's time. A cache that is being filled counts as growing until it is nearly full.
// Buffers that become larger, but not more, do not count as growing. If very many lines have old
// buffers, the first 1,024 are followed.
func Growing(s *snapshot.Snapshot) []Suspect {
	found := []Suspect{} // not nil, so that JSON has a list
	for site, l := range linesOf(s, filter{}) {
		if g, ok := growthOf(s, site, l); ok {
			found = append(found, g)
		}
	}
	slices.SortStableFunc(found, func(x, y Suspect) int {
		return cmp.Or(cmp.Compare(y.growing.Hourly, x.growing.Hourly), tables.CompareFrames(x.CallSite, y.CallSite))
	})
	return found
}

// growthOf tests a line first, and then each call path to it.
func growthOf(s *snapshot.Snapshot, site mem.Frame, l *line) (g Suspect, ok bool) {
	t, now := tables.Of(&s.Tables), ageOf(s)
	found, ok := unitOf(t.Lines[site]).Growing(now, l.live)
	of := l.live
	if !ok {
		for stack, live := range pathsOf(s, l) {
			path, grows := unitOf(t.Paths[stack]).Growing(now, live)
			if grows && (!ok || path.Now > found.Now) && !unitOf(t.Lines[site]).Replaced(now, l.live, path) {
				found, of, ok = path, live, true
			}
		}
	}
	if !ok {
		return g, false
	}
	var old []survival.Buffer
	for _, b := range of {
		if found.From <= b.Since && b.Since < found.To {
			old = append(old, b)
			g.Tally = g.Tally.Add(mem.Tally{Count: 1, Bytes: t.Sites[t.Allocations[b.Of].Site].Tensor.Each})
		}
	}
	callers := callersOf(s, old, l)
	g.CallSite, g.Path, g.others = site, callers.path, callers.texts()
	g.growing = &growing{found.Age, found.Freed, 3600 * found.Now, 3600 * found.First}
	return g, true
}

// unitOf returns a unit that freed nothing for none.
func unitOf(u *survival.Unit) *survival.Unit {
	if u == nil {
		return new(survival.Unit)
	}
	return u
}
