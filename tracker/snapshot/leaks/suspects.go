package leaks

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Suspect is a line of code whose live buffers are too many or too old, as Suspects or Growing found.
// String and the JSON say why.
type Suspect struct {
	CallSite  mem.Frame
	Path      mem.Path // the common part of these buffers' call stacks
	mem.Tally          // these buffers: those that keep aging, or those that became old and were not freed

	others  []string // the paths of other buffers allocated at the same line, at most four, each with its share of all
	aging   aging
	growing *growing // nil of what Suspects found
}

// aging is why a line is a suspected leak: these buffers keep aging, while most others of the line are freed quickly.
type aging struct {
	// Youngest and Oldest are the ages of the youngest and the oldest.
	Youngest time.Duration `json:"youngest_ns"`
	Oldest   time.Duration `json:"oldest_ns"`
	// Of all that became older than Age, Late were freed since. Many others, Freed, were freed
	// much younger, before Usual.
	Age   time.Duration `json:"age_ns"`
	Late  int64         `json:"freed_late"`
	Freed int64         `json:"freed"`
	Usual time.Duration `json:"usual_ns"`
}

// String says what looks suspicious and why, and how the line is reached:
//
//	main.go:88 main.decode looks forgotten: 26 buffers, 26.0 MiB, 4 to 36 min old; 0 of 26 that became older than 1.2 min were freed since, 2,871 others before 540 ms
//		path: main.decode <- handle <- serveHTTP
//		also: main.decode <- warm, 3.1 %
//	entry.go:40 main.(*cache).add growing, not yet known whether bounded: 29,480 buffers, 29.0 GiB; 4,020 of 33,500 that became older than 8.6 min were freed; 8,300 more each hour lately (12,000 at first)
//		path: main.(*cache).add <- (*service).handle
func (s Suspect) String() string {
	because := s.aging.describe(s.Tally)
	if s.growing != nil {
		because = s.growing.describe(s.Tally)
	}
	return fmt.Sprintf("%s %s\n%v", text.Line(s.CallSite.String()), because, way(s.Path, s.others))
}

func (f aging) describe(old mem.Tally) string {
	return fmt.Sprintf("looks forgotten: %v, %s old; %s of %s that became older than %s were freed since, %s others before %s",
		old, fromTo(f.Youngest, f.Oldest), grouped(f.Late), grouped(old.Count+f.Late), text.Duration(f.Age), grouped(f.Freed), text.Duration(f.Usual))
}

// suspectJSON is the JSON form of a Suspect, without why it is one.
type suspectJSON struct {
	CallSite mem.Frame `json:"call_site"`
	Path     mem.Path  `json:"path"`
	Others   []string  `json:"others"`
	mem.Tally
}

// MarshalJSON writes the line and why it is suspicious, as the page at /leaks and the command leaks give it.
func (s Suspect) MarshalJSON() ([]byte, error) {
	line := suspectJSON{s.CallSite, s.Path, s.others, s.Tally}
	if s.growing != nil {
		return json.Marshal(struct {
			suspectJSON
			growing
		}{line, *s.growing})
	}
	return json.Marshal(struct {
		suspectJSON
		aging
	}{line, s.aging})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Suspect) UnmarshalJSON(text []byte) error {
	var in struct {
		suspectJSON
		aging
		Since   int64    `json:"freed_since"`
		Hourly  *float64 `json:"hourly"`
		AtFirst float64  `json:"hourly_at_first"`
	}
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	*s = Suspect{CallSite: in.CallSite, Path: in.Path, Tally: in.Tally, others: in.Others, aging: in.aging}
	if in.Hourly != nil {
		s.aging, s.growing = aging{}, &growing{in.Age, in.Since, *in.Hourly, in.AtFirst}
	}
	return nil
}

// fromTo prints two durations, with one unit if they have the same: "4 to 36 min".
func fromTo(least, most time.Duration) string {
	from, to := text.Duration(least), text.Duration(most)
	number, unit, _ := strings.Cut(from, " ")
	if strings.HasSuffix(to, " "+unit) {
		from = number
	}
	if from+" "+unit == to {
		return to
	}
	return from + " to " + to
}

// grouped prints a number with commas: "2,871".
func grouped(n int64) string {
	plain := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range plain {
		if i > 0 && (len(plain)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// Suspects returns the lines of code with live buffers that look forgotten, more
// bytes first. A leak of one buffer in a hundred is found as soon as eight are old
// enough: within seconds in a busy server. A light snapshot has none, nor one of a source
// that does not count how long freed buffers lived.
//
// The source counts for each line how old its buffers were when they were freed. A line that frees
// buffers of some age should also free older ones, if more rarely: of all that reach an age, at
// least 29 % before they are twice as old. If far fewer were freed, so few that it would happen by
// chance only once in a hundred thousand times, the live ones look forgotten. Suspects tests this
// for ages of 1 s, 2 s, 4 s and so on, for each line and for each call path to it. Some buffers
// live long on purpose, so more rules apply:
//
//   - Of the buffers that old, at most a quarter as many were freed as are live, and many more were
//     freed when they were much younger. For a line, this leaves out the call paths that freed less
//     than half of what they allocated. So parameters are no suspects, even if the line that
//     allocates them also allocates buffers that are freed.
//   - There are at least eight live ones, allocated at eight different moments, over a time at
//     least as long as their age. Since the first of them the line has gone on to allocate; at
//     least a quarter of them are from the second half of that. A pool that was filled at the start
//     leaves old buffers too, but all from one time.
//   - Of all that the line allocated from the first of them to the last, at most half are live. In a hang,
//     a queue or a long batch nearly all are.
//
// The limits: Buffers that live long on purpose, are allocated again and again, and were never
// freed yet look like a leak, for example sessions of an hour in the first hour; options such as
// IgnoreFunction leave them out. Once enough of them were freed, they are no longer named. A line
// that frees nothing looks like a cache (see Growing). A leak of fewer than eight buffers is not
// found, nor one that has stopped while the line went on.
func Suspects(s *snapshot.Snapshot, opts ...Option) []Suspect {
	found := []Suspect{} // not nil, so that JSON has a list
	for site, l := range linesOf(s, newFilter(opts)) {
		if old, ok := agingOf(s, site, l); ok {
			found = append(found, newSuspect(s, site, l, old))
		}
	}
	slices.SortStableFunc(found, func(x, y Suspect) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), tables.CompareFrames(x.CallSite, y.CallSite))
	})
	return found
}

// agingOf tests a line first, without the call paths that usually do not free, and then each call
// path.
func agingOf(s *snapshot.Snapshot, site mem.Frame, l *line) (found survival.Suspected, ok bool) {
	t := tables.Of(&s.Tables)
	unit, now := t.Lines[site], ageOf(s)
	if unit == nil {
		return found, false
	}
	var cleaned []survival.Buffer
	for _, b := range l.live {
		if l.counts[stackOf(t, b)].frees() {
			cleaned = append(cleaned, b)
		}
	}
	if found, ok = unit.Suspected(now, cleaned, unit.Freed()); ok {
		return found, true
	}
	for stack, live := range pathsOf(s, l) {
		if unit := t.Paths[stack]; unit != nil {
			n := l.counts[stack]
			if old, suspected := unit.Suspected(now, live, n.total-n.live); suspected && len(old.Old) > len(found.Old) {
				found, ok = old, true
			}
		}
	}
	return found, ok
}

func newSuspect(s *snapshot.Snapshot, site mem.Frame, l *line, found survival.Suspected) Suspect {
	callers := callersOf(s, found.Old, l)
	out := Suspect{
		CallSite: site, Path: callers.path, others: callers.texts(),
		aging: aging{ageOf(s) - found.Old[len(found.Old)-1].Since, ageOf(s) - found.Old[0].Since, found.Age, found.Freed, found.Young, found.Usual},
	}
	t := tables.Of(&s.Tables)
	for _, b := range found.Old {
		out.Tally = out.Tally.Add(mem.Tally{Count: 1, Bytes: t.Sites[t.Allocations[b.Of].Site].Tensor.Each})
	}
	return out
}

// ageOf is how long the program has run.
func ageOf(s *snapshot.Snapshot) time.Duration { return s.Time.Sub(tables.Of(&s.Tables).Epoch) }

// line is what a snapshot knows about a line of code.
type line struct {
	site   mem.Frame
	counts []stackCount      // by StackID, those of other lines too
	live   []survival.Buffer // oldest first; Of is the index of the allocation
	held   int64             // number of live buffers
}

// stacks yields the call stacks that lead to the line.
func (l *line) stacks(of tables.Stacks) iter.Seq2[tables.StackID, stackCount] {
	return func(yield func(tables.StackID, stackCount) bool) {
		for i, n := range l.counts {
			if id := tables.StackID(i); n.total > 0 && of.Site(id) == l.site && !yield(id, n) {
				return
			}
		}
	}
}

// stackCount is how many buffers a call stack allocated.
type stackCount struct{ live, total int64 }

// frees reports whether the call stack usually frees: at least half of the buffers that it ever
// allocated are freed.
func (c stackCount) frees() bool { return 2*c.live <= c.total }

// CanTell reports whether a snapshot's source counts how long freed buffers lived. Without that Suspects and Growing have
// nothing, whatever leaks.
func CanTell(s *snapshot.Snapshot) bool { return tables.Of(&s.Tables).Paths != nil }

// linesOf returns the lines of code with enough live buffers to be named, with the live buffers
// that the filter selects. It returns none if the source does not count how long buffers live.
func linesOf(s *snapshot.Snapshot, filter filter) map[mem.Frame]*line {
	if !CanTell(s) {
		return nil
	}
	t, lines := tables.Of(&s.Tables), make(map[mem.Frame]*line)
	counts := countStacks(t)
	bySite := make([]*line, len(t.Sites))
	for i, e := range t.Sites {
		site := t.Stacks.Site(e.Stack)
		l := lines[site]
		if l == nil {
			l = &line{site: site, counts: counts}
			lines[site] = l
		}
		bySite[i] = l
		l.held += e.Live
	}
	for i, e := range t.Allocations {
		l := bySite[e.Site]
		if l.held < survival.Fewest || !filter.all() && !filter.selects(t, &e) {
			continue
		}
		if l.live == nil {
			l.live = make([]survival.Buffer, 0, l.held)
		}
		l.live = append(l.live, survival.Buffer{Since: e.Since, Seq: e.Seq, Ordinal: e.InLine, Of: int32(i)})
	}
	for site, l := range lines {
		if len(l.live) < survival.Fewest {
			delete(lines, site)
		}
	}
	return lines
}

// countStacks returns how many buffers each call stack allocated, by its StackID. IDs are dense, so that a slice takes a
// fraction of a map's memory.
func countStacks(t *tables.Tables) []stackCount {
	most := tables.StackID(0)
	for _, e := range t.Sites {
		most = max(most, e.Stack)
	}
	for _, e := range t.Retired {
		most = max(most, e.Stack)
	}
	counts := make([]stackCount, int(most)+1)
	for _, e := range t.Sites {
		counts[e.Stack].live += e.Live
		counts[e.Stack].total += e.Total
	}
	for _, e := range t.Retired {
		counts[e.Stack].total += e.Total.Count
	}
	return counts
}

// pathsOf returns, for each call path to a line that has enough live buffers to be named, its live
// buffers, in the order of the stacks.
func pathsOf(s *snapshot.Snapshot, l *line) iter.Seq2[tables.StackID, []survival.Buffer] {
	t, by := tables.Of(&s.Tables), make(map[tables.StackID][]survival.Buffer)
	for _, b := range l.live {
		stack := stackOf(t, b)
		if l.counts[stack].live >= survival.Fewest {
			b.Ordinal = t.Allocations[b.Of].InPath
			by[stack] = append(by[stack], b)
		}
	}
	return func(yield func(tables.StackID, []survival.Buffer) bool) {
		for _, stack := range slices.Sorted(maps.Keys(by)) {
			if !yield(stack, by[stack]) {
				return
			}
		}
	}
}

func stackOf(t *tables.Tables, b survival.Buffer) tables.StackID {
	return t.Sites[t.Allocations[b.Of].Site].Stack
}

// callers says how a line of code that holds suspicious memory is reached.
type callers struct {
	path   mem.Path // common part of the call stacks of that memory
	others []other  // the paths of other buffers allocated at the same line, each cut where it leaves path; those with more buffers first
}

// other is a path to a line of code, with its share (0 to 1) of the buffers ever allocated at that
// line.
type other struct {
	path  mem.Path
	share float64
}

// String prints the path and the share: "main.decode <- warm, 3.1 %".
func (o other) String() string { return fmt.Sprintf("%v, %.1f %%", o.path, 100*o.share) }

const maxOthers = 4

// callersOf finds the callers of some of a line's buffers.
func callersOf(s *snapshot.Snapshot, buffers []survival.Buffer, l *line) callers {
	t, stacks := tables.Of(&s.Tables), make([]tables.StackID, len(buffers))
	for i, b := range buffers {
		stacks[i] = stackOf(t, b)
	}
	return newCallers(stacks, l.stacks(t.Stacks), t.Stacks.Path)
}

// newCallers finds the callers of the buffers of some stacks by the counts of all stacks of their line.
func newCallers(stacks []tables.StackID, line iter.Seq2[tables.StackID, stackCount], resolve func(tables.StackID) mem.Path) callers {
	theirs := make(map[tables.StackID]bool)
	var common mem.Path
	for _, stack := range stacks {
		if !theirs[stack] {
			theirs[stack] = true
			p := resolve(stack)
			if len(theirs) > 1 {
				p = pathCommon(common, p)
			}
			common = p
		}
	}
	var all int64
	others := make(map[string]other)
	for id, n := range line {
		all += n.total
		if theirs[id] {
			continue
		}
		p := resolve(id)
		same := pathSameCalls(p, common)
		if same == len(common) {
			continue
		}
		p = p[:min(same+1, len(p))]
		key := pathCalls(p)
		if known, ok := others[key]; ok {
			p = pathCommon(known.path, p)
		}
		others[key] = other{p, others[key].share + float64(n.total)}
	}
	c := callers{common, slices.Collect(maps.Values(others))}
	slices.SortFunc(c.others, func(x, y other) int {
		return cmp.Or(cmp.Compare(y.share, x.share), cmp.Compare(pathCalls(x.path), pathCalls(y.path)))
	})
	c.others = c.others[:min(len(c.others), maxOthers)]
	for i := range c.others {
		c.others[i].share /= float64(all)
	}
	return c
}

// texts returns the others as text.
func (c callers) texts() []string {
	texts := make([]string, len(c.others))
	for i, o := range c.others {
		texts[i] = o.String()
	}
	return texts
}

// way prints a line for the path and one for each of the others.
func way(path mem.Path, others []string) string {
	lines := []string{"\tpath: " + text.Line(path.String())}
	for _, other := range others {
		lines = append(lines, "\talso: "+text.Line(other))
	}
	return strings.Join(lines, "\n")
}

// pathCommon returns the beginning that p and q share, with line 0 where only the lines differ.
func pathCommon(p mem.Path, q mem.Path) mem.Path {
	n := pathSameCalls(p, q)
	p = slices.Clone(p[:n])
	for i := range p {
		if p[i] != q[i] {
			p[i].Line = 0
		}
	}
	return p
}

// pathCalls names the functions.
func pathCalls(p mem.Path) string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Function)
		b.WriteByte('\n')
	}
	return b.String()
}

// pathSameCalls returns how many functions both begin with.
func pathSameCalls(p mem.Path, q mem.Path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n].Function == q[n].Function {
		n++
	}
	return n
}
