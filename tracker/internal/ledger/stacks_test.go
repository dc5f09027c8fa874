package ledger

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// someCalls are return addresses in several functions of the runtime, of package
// testing, of this package and of others.
func someCalls() (pcs []uintptr) {
	look := func() {
		all := make([]uintptr, 64)
		pcs = append(pcs, all[:runtime.Callers(0, all)]...)
	}
	look()
	new(sync.Once).Do(look)
	slices.SortFunc([]int{2, 1}, func(a, b int) int { look(); return a - b })
	func() {
		defer func() { _ = recover() }()
		defer look()
		panic("on purpose")
	}()
	slices.Sort(pcs)
	return slices.Compact(pcs)
}

// randomStacks are n stacks that no program has, made of calls that this one has.
func randomStacks(n int) (all [][]uintptr) {
	random, calls := rand.New(rand.NewPCG(1, 2)), someCalls()
	for range n {
		pcs := make([]uintptr, random.IntN(24))
		for i := range pcs {
			pcs[i] = calls[random.IntN(len(calls))]
		}
		all = append(all, pcs)
	}
	return all
}

// internRandom interns random stacks.
func internRandom(s *Stacks, n int) (ids []callstack.ID) {
	for _, pcs := range randomStacks(n) {
		ids = append(ids, s.Table.Intern(pcs))
	}
	return ids
}

func TestLineIsTheSiteOfTheStack(t *testing.T) {
	for _, libraries := range [][]string{nil, {"testing"}, {"testing", "slices", "sync", "main"}} {
		t.Run(fmt.Sprint(libraries), func(t *testing.T) {
			s := NewStacks(0, 0, libraries)
			lines := make(map[mem.Frame]LineID)
			for _, id := range append(internRandom(s, 2000), 0, callstack.Overflow) {
				stack := s.Stack(tables.StackID(id))
				site, line := stack.CallSite(libraries...), s.Line(tables.StackID(id))
				require.Equal(t, site, s.Frame(line), "%v", stack)
				require.Equal(t, site, s.Site(tables.StackID(id)))
				require.Equal(t, line, s.Line(tables.StackID(id)), "another number the second time")
				if known, ok := s.KnownLine(tables.StackID(id)); ok {
					require.Equal(t, line, known)
				} else {
					require.Zero(t, line)
				}
				if other, known := lines[site]; known {
					require.Equal(t, other, line, "%v has two numbers", site)
				}
				lines[site] = line
			}
			assert.Greater(t, len(lines), 3)
			assert.LessOrEqual(t, len(s.lines.frames), len(someCalls())+2)
			assert.LessOrEqual(t, len(*s.lines.ofStack.Load()), 2000/linesInPage+1, "four bytes for each stack")
		})
	}
}

func TestLinesFromManyGoroutines(t *testing.T) {
	s := NewStacks(0, 0, []string{"testing"})
	ids := internRandom(s, 3000)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, id := range ids {
				assert.Equal(t, s.Stack(tables.StackID(id)).CallSite("testing"), s.Site(tables.StackID(id)))
			}
		})
	}
	all.Wait()
}

func TestNamedStacksAreBounded(t *testing.T) {
	s := NewStacks(0, 0, nil)
	ids := internRandom(s, 5*maxNamed)
	often := ids[0]
	for _, id := range ids {
		want := s.Stack(tables.StackID(id))
		again := s.Stack(tables.StackID(id))
		require.Equal(t, want, again)
		if len(want) > 0 {
			assert.Same(t, &want[0], &again[0], "named twice in a row")
		}
		s.Stack(tables.StackID(often))
	}
	assert.LessOrEqual(t, len(s.named.young)+len(s.named.old), maxNamed)
	assert.Greater(t, len(s.named.young)+len(s.named.old), maxNamed/2)
	assert.Contains(t, s.named.young, often, "what is asked for all the time is forgotten")
}

// BenchmarkLineOfNewStack is what a call site costs beyond the capture of its stack.
func BenchmarkLineOfNewStack(b *testing.B) {
	s := NewStacks(0, 0, []string{"testing"})
	ids := internRandom(s, 400_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i == len(ids) {
			i = 0
			s.lines.ofStack.Store(new([]*linePage))
		}
		s.Line(tables.StackID(ids[i]))
	}
}

// A full table still knows the line of new stacks, and those say that they are not whole.
func TestFullTableKnowsLines(t *testing.T) {
	const most = 64
	libraries := []string{"testing", "slices"}
	s, whole := NewStacks(0, most, libraries), NewStacks(0, 0, libraries)
	var cut []callstack.ID
	for _, pcs := range randomStacks(2000) {
		id, want := s.Table.Intern(pcs), whole.Stack(tables.StackID(whole.Table.Intern(pcs)))
		got := s.Stack(tables.StackID(id))
		switch {
		case id <= most:
			require.Equal(t, want, got)
		case id != callstack.Overflow:
			last := len(got) - 1
			require.Contains(t, got[last].Function, "(call stack table full: ")
			if site, users := siteOf(want, s.lines.libraries); users {
				require.Equal(t, want[:last], got[:last])
				require.Equal(t, site, got[last-1])
			}
			require.Equal(t, want.CallSite(libraries...), s.Site(tables.StackID(id)))
			require.Equal(t, want.CallSite(libraries...), got.CallSite(libraries...))
			cut = append(cut, id)
		}
	}
	slices.Sort(cut)
	assert.Len(t, slices.Compact(cut), most/4)
}

// Of a stack without the user's code, one frame is left.
func TestShortStackOfLibraries(t *testing.T) {
	s := NewStacks(0, 0, []string{"testing", "slices", "sync"})
	for _, pcs := range randomStacks(500) {
		var stack mem.Stack
		for _, pc := range pcs {
			for _, f := range s.Table.FramesAt(pc) {
				stack = append(stack, mem.Frame(f))
			}
		}
		short := s.lines.short(pcs)
		if site := stack.CallSite(s.lines.libraries...); site == (mem.Frame{}) {
			require.Empty(t, short)
		} else {
			require.Len(t, short, 1)
			require.Equal(t, site, mem.Frame(s.Table.FramesAt(short[0])[0]))
		}
	}
}

// BenchmarkResolve names stacks that were not named lately.
func BenchmarkResolve(b *testing.B) {
	s := NewStacks(0, 0, nil)
	ids := internRandom(s, 10*maxNamed)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Stack(tables.StackID(ids[i%len(ids)]))
	}
}
