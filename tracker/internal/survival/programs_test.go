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

// TestPrograms runs each program once, as long as it takes to find its leak, or a third of its time.
func TestPrograms(t *testing.T) {
	if *long {
		t.Skip("TestTable does more")
	}
	for i, p := range leakprograms.All {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			want, leaks := leakprograms.Wants[p.Name]
			require.Equal(t, p.Kind == leakprograms.Leaks, leaks)
			hours := p.Hours / 3
			if leaks {
				begun := p.Begins
				hours = min(p.Hours, begun+1.5*max(want.Forgotten, want.Growing).Hours()+0.1)
			}
			look := max(30*time.Second, time.Duration(hours/120*float64(time.Hour)))
			f, g := run(0, i, hours, look)
			if !leakprograms.CannotKnow[p.Name] {
				assert.Zero(t, f.Wrong+f.Rising, "named as forgotten")
			}
			assert.LessOrEqual(t, g.Wrong, g.Looks/5, "named as growing")
			if leaks {
				assert.Zero(t, g.Wrong)
				found(t, "forgotten", f, want.Forgotten, look)
				found(t, "growing", g, want.Growing, look)
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
	if d < 90*time.Minute {
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
