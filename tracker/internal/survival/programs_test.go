package survival_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/leakprograms"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
)

var (
	long   = flag.Bool("long", false, "run the leak programs to their end, with six seeds")
	update = flag.Bool("update", false, "write the table of docs/leaks.md anew")
)

// source counts the buffers of a program.
type source struct {
	now   func() time.Duration
	units survival.Units
	seq   uint64
	lines map[string]*line

	all, some []survival.Buffer // of a line, at a look
}

type line struct {
	unit  survival.Unit
	paths map[string]*path
	live  []*buffer // with dead ones
}

type path struct {
	unit        survival.Unit
	live, total int64
	buffers     []survival.Buffer // at a look
}

type buffer struct {
	since      time.Duration
	seq        uint64
	inLine, in uint16
	path       *path
	dead       bool
}

func (s *source) Alloc(at, by string) func() {
	l := s.lines[at]
	if l == nil {
		l = &line{paths: make(map[string]*path)}
		s.lines[at] = l
	}
	p := l.paths[by]
	if p == nil {
		p = new(path)
		l.paths[by] = p
	}
	b := &buffer{since: s.now(), seq: s.seq, inLine: l.unit.Births, in: p.unit.Births, path: p}
	s.seq++
	l.unit.Births++
	p.unit.Births++
	p.live++
	p.total++
	l.live = append(l.live, b)
	return func() {
		b.dead = true
		p.live--
		s.units.Freed(&l.unit, &p.unit, s.now()-b.since, s.now(), s.seq)
		s.seq++
	}
}

func (s *source) Look() (forgotten, growing []string) {
	now := s.now()
	for name, l := range s.lines {
		l.live = slices.DeleteFunc(l.live, func(b *buffer) bool { return b.dead })
		s.all, s.some = s.all[:0], s.some[:0]
		for _, p := range l.paths {
			p.buffers = p.buffers[:0]
		}
		for _, b := range l.live {
			in := survival.Buffer{Since: b.since, Seq: b.seq, Birth: b.inLine}
			s.all = append(s.all, in)
			if 2*b.path.live <= b.path.total {
				s.some = append(s.some, in)
			}
			in.Birth = b.in
			b.path.buffers = append(b.path.buffers, in)
		}
		_, forgets := l.unit.Forgotten(now, s.some, l.unit.Freed())
		_, grows := l.unit.Growing(now, s.all)
		for _, p := range l.paths {
			if !forgets {
				_, forgets = p.unit.Forgotten(now, p.buffers, p.total-p.live)
			}
			if !grows {
				_, grows = p.unit.Growing(now, p.buffers)
			}
		}
		if forgets {
			forgotten = append(forgotten, name)
		}
		if grows {
			growing = append(growing, name)
		}
	}
	return forgotten, growing
}

// want is what the two statements must reach in a program that leaks: found so long after the leak
// began, as a median; 0 is never.
type want struct{ forgotten, growing time.Duration }

const minute = time.Minute

var wants = map[string]want{
	"error path, 1 of 400 of 10/s":                                            {7 * minute, 6 * minute},
	"unbounded Zipf cache, 1 hit in 2 refreshed":                              {0, minute},
	"unbounded Zipf cache, 1 hit in 5":                                        {0, minute},
	"unbounded Zipf cache, 1 hit in 20":                                       {0, minute},
	"unbounded Zipf cache, none refreshed":                                    {0, minute},
	"cache +1/s, replaces 1 per 20 added":                                     {0, minute},
	"cache +1/s, replaces 1 per 2 added":                                      {0, minute},
	"stuck worker of 16 each ~5 min, own path":                                {0, 60 * minute},
	"streams 1 s to 5 min, 1 in 70 forgotten":                                 {40 * minute, 31 * minute},
	"1 in 100 of 2/s, only after a day":                                       {12 * minute, 405 * minute},
	"one line: parameters, requests 5/s, a path that leaks 1 each 2 min":      {0, 17 * minute},
	"one line: sessions 10 s to 3 h, and a path that forgets 1 in 200 of 1/s": {29 * minute, 29 * minute},
	"day and night, sessions, 1 in 300 forgotten":                             {20 * 60 * minute, 32 * 60 * minute},
	"a path that never frees leaks 1 each 2 min, after a day":                 {0, 405 * minute},
	"64 paths to one line, 1 of 400 of 5/s forgotten":                         {12 * minute, 11 * minute},
	"every second one of 1 each 5 s":                                          {5 * minute, 3 * minute},
}

// cannotKnow are the programs without a leak of which buffers look forgotten for some time.
var cannotKnow = map[string]bool{
	"1 request in 20 waits 10 min, each 2 h for 10 min": true,
	"1 in 100 requests is a session of just 2 h":        true,
}

// TestPrograms runs each program once, as long as it takes to find its leak, or a third of its time.
func TestPrograms(t *testing.T) {
	if *long {
		t.Skip("TestTable does more")
	}
	for i, p := range leakprograms.All {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			want, leaks := wants[p.Name]
			require.Equal(t, p.Kind == leakprograms.Leaks, leaks)
			hours := p.Hours / 3
			if leaks {
				begun := p.Begins
				hours = min(p.Hours, begun+1.5*max(want.forgotten, want.growing).Hours()+0.1)
			}
			look := max(30*time.Second, time.Duration(hours/120*float64(time.Hour)))
			f, g := run(0, i, hours, look)
			if !cannotKnow[p.Name] {
				assert.Zero(t, f.Wrong+f.Rising, "named as forgotten")
			}
			assert.LessOrEqual(t, g.Wrong, g.Looks/5, "named as growing")
			if leaks {
				assert.Zero(t, g.Wrong)
				found(t, "forgotten", f, want.forgotten, look)
				found(t, "growing", g, want.growing, look)
			}
		})
	}
}

// found compares a verdict with what it must reach: 0 is never.
func found(t *testing.T, what string, v leakprograms.Verdict, want, look time.Duration) {
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

func run(seed uint64, i int, hours float64, look time.Duration) (forgotten, growing leakprograms.Verdict) {
	w := leakprograms.New(seed, i)
	return w.Run(&source{now: w.Now, lines: make(map[string]*line)}, leakprograms.All[i], hours, look)
}

// TestTable runs the programs to their end, with six seeds and a look each half minute. The table of what it
// finds stands in docs/leaks.md.
func TestTable(t *testing.T) {
	if !*long {
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
				forgotten, growing := run(seed, i, p.Hours, 30*time.Second)
				f, g = append(f, forgotten), append(g, growing)
				looks += growing.Looks
				wrongGrowing += growing.Wrong
				if !cannotKnow[p.Name] {
					wrongForgotten += forgotten.Wrong + forgotten.Rising
				}
			}
			if kind != leakprograms.Leaks {
				row(p.Name, fmt.Sprintf("%.0f", p.Hours), alarms(f), alarms(g))
				continue
			}
			want := wants[p.Name]
			row(p.Name, fmt.Sprintf("%.0f", p.Hours), median(t, p.Name, f, want.forgotten), median(t, p.Name, g, want.growing))
		}
	}
	assert.Zero(t, wrongForgotten, "named as forgotten")
	assert.LessOrEqual(t, 20_000*wrongGrowing, 13*looks, "named as growing, at %d of %d looks, while the level did not rise", wrongGrowing, looks)
	inDocs(t, "../../../docs/leaks.md", table.String())
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
	return fmt.Sprintf("at %d of %d looks, %d of them while it rose", wrong+rising, looks, rising)
}

func short(d time.Duration) string {
	if d < 90*minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// inDocs compares a table with the one of a page that begins alike.
func inDocs(t *testing.T, page, table string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	header, _, _ := strings.Cut(table, "\n")
	before, rest, found := strings.Cut(string(text), header)
	require.True(t, found, "no table in %s", page)
	old, after, _ := strings.Cut(header+rest, "\n\n")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+table+"\n"+after), 0o644))
		return
	}
	assert.Equal(t, table, old+"\n", "go test -long -update writes it anew")
}
