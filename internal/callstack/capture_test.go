package callstack_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// places are the ways by which a function is reached. Each calls look once.
var places = map[string]func(look func()){
	"called":            func(look func()) { look() },
	"inlined":           inlined1,
	"method value":      func(look func()) { f := caller{look}.call; defer runtime.KeepAlive(f); f() },
	"promoted method":   func(look func()) { callInterface(&embedding{embedded{caller{look}}}) },
	"pointer wrapper":   func(look func()) { callInterface(&caller{look}) },
	"many wrappers":     manyWrappers,
	"too many wrappers": tooManyWrappers,
	"generic":           func(look func()) { generic[int](look); generic[string](look2(look)) },
	"range function":    func(look func()) { ranged(look) },
	"reflect call":      func(look func()) { reflect.ValueOf(look).Call(nil) },
	"reflect method":    func(look func()) { reflect.ValueOf(caller{look}).Method(0).Call(nil) },
	"reflect function":  reflectFunction,
	"sort callback":     func(look func()) { slices.SortFunc([]int{2, 1}, func(a, b int) int { look(); return a - b }) },
	"once":              func(look func()) { new(sync.Once).Do(look) },
	"deferred":          func(look func()) { defer look() },
	"deferred in loop": func(look func()) {
		for range 2 {
			defer look()
		}
	},
	"panicking":        panicking,
	"panicking twice":  func(look func()) { defer func() { _ = recover() }(); defer panicking(look); panic("first") },
	"recovered":        func(look func()) { panicking(func() {}); look() },
	"nil dereference":  func(look func()) { faulting(look, func() { dereference(nil) }) },
	"nil call":         func(look func()) { faulting(look, func() { var f func(); f() }) },
	"division":         func(look func()) { faulting(look, func() { runtime.KeepAlive(divide(1, 0)) }) },
	"deep recursion":   func(look func()) { recurse(1000, look) },
	"depth reached":    func(look func()) { atDepth(callstack.DefaultDepth+1, look) },
	"goroutine":        func(look func()) { wait(func(done func()) { go func() { defer done(); look() }() }) },
	"goroutine itself": func(look func()) { wait(func(done func()) { go lookAndDone(look, done) }) },
	"goexit": func(look func()) {
		wait(func(done func()) { go func() { defer done(); defer look(); runtime.Goexit() }() })
	},
	"timer": func(look func()) { wait(func(done func()) { time.AfterFunc(0, func() { defer done(); look() }) }) },
	"finalizer": func(look func()) {
		collected(func(x *[64]byte, done func()) { runtime.SetFinalizer(x, func(*[64]byte) { look(); done() }) })
	},
	"cleanup": func(look func()) {
		collected(func(x *[64]byte, done func()) { runtime.AddCleanup(x, func(int) { look(); done() }, 0) })
	},
}

// slow are the places where a walk determines no stack, so that each capture takes the slow way.
var slow = map[string]bool{"too many wrappers": true, "nil dereference": true, "nil call": true, "cgo callback": true, "cgo thread": true, "cgo twice": true}

func TestCaptureIsRuntimeCallers(t *testing.T) {
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			p := newProbe()
			var seen []sight
			place(func() { seen = append(seen, p.take()) })
			require.NotEmpty(t, seen)
			for _, s := range seen {
				p.check(t, s)
			}
			if callstack.Walks && !slow[name] {
				assert.Positive(t, seen[0].keys, "each capture here takes the slow way")
			} else {
				assert.Zero(t, seen[0].keys)
			}
		})
	}
}

// A function without a frame of its own faults: its caller's line is on no chain of frame pointers.
func TestCaptureTellsFaultingLinesApart(t *testing.T) {
	p := newProbe()
	var seen []sight
	look := func() { seen = append(seen, p.take()) }
	for range 2 {
		for line := range 2 {
			dereferenceOnLine(look, line)
		}
	}
	require.Len(t, seen, 4)
	for _, s := range seen {
		p.check(t, s)
	}
	assert.NotEqual(t, seen[0].ids[0], seen[1].ids[0])
	assert.Equal(t, seen[0].ids[0], seen[2].ids[0])
	assert.Equal(t, seen[1].ids[0], seen[3].ids[0])
}

// The line that no walk meets is one that the recursion stands at elsewhere, so that a shifted walk covers the stack.
func TestCaptureTellsFaultsInDeepRecursionApart(t *testing.T) {
	const levels, alternating = 60, 0x2aaaaaaaaaaaaaa
	p := newProbe()
	var seen []sight
	for _, path := range []uint64{alternating, alternating | 1<<(levels-1)} {
		faultBelow(func() { seen = append(seen, p.take()) }, levels, path)
	}
	require.Len(t, seen, 2)
	for _, s := range seen {
		p.check(t, s)
	}
	assert.NotEqual(t, seen[0].want, seen[1].want)
}

// Stacks of equal frames, which differ only in the lines that some of them stand at, are looked at in any order.
func TestCaptureTellsPathsApart(t *testing.T) {
	const levels = 7
	p := newProbe()
	random := rand.New(rand.NewPCG(1, 2))
	seen := make(map[uint32]callstack.ID)
	for range 3000 {
		path := random.Uint32() % (1 << levels)
		branch(levels, path, func() {
			s := p.take()
			p.check(t, s)
			if id, again := seen[path]; again {
				assert.Equal(t, id, s.ids[0])
			}
			seen[path] = s.ids[0]
		})
	}
	assert.Len(t, seen, 1<<levels)
	assert.Equal(t, 1<<levels, p.stacks.Len())
}

func TestCaptureOfDeeperStacksIsEqual(t *testing.T) {
	for _, depth := range []int{1, 7, callstack.DefaultDepth, callstack.DefaultDepth + 1, callstack.MaxDepth} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			p := &probe{stacks: callstack.NewTable(callstack.Config{Depth: depth}), depth: depth}
			var seen []sight
			look := func() { seen = append(seen, p.take()) }
			for _, n := range []int{depth + 10, depth + 11, 500} {
				recurse(n, look)
			}
			for _, s := range seen {
				p.check(t, s)
				assert.Len(t, p.stacks.PCs(s.ids[0]), depth)
				assert.Equal(t, seen[0].ids, s.ids)
			}
			assert.Equal(t, 1, p.stacks.Len())
		})
	}
}

// The same call skips a different number of frames each time, at inlined calls too.
func TestCaptureSkip(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	for range 2 {
		inlined1(func() {
			var all [callstack.DefaultDepth]uintptr
			total := runtime.Callers(2, all[:])
			for skip := 1; skip < total+3; skip++ {
				got := stacks.PCs(stacks.Capture(skip))
				assert.Equal(t, all[min(skip-1, total):total], append([]uintptr{}, got...), "skip %d", skip)
			}
		})
	}
	assert.Equal(t, stacks.Capture(-1), callstack.ID(stacks.Len()), "a new stack")
	id := stacks.Capture(-1)
	for f := range stacks.Frames(id) {
		assert.Contains(t, f.Function, "TestCaptureSkip")
		break
	}
}

// What is skipped may be inlined into what is kept.
func TestCaptureSkipsInlinedFrames(t *testing.T) {
	stacks := callstack.NewTable(callstack.Config{})
	for range 2 {
		id := captureInlined(stacks)
		_, _, line, _ := runtime.Caller(0)
		for f := range stacks.Frames(id) {
			assert.Contains(t, f.Function, "TestCaptureSkipsInlinedFrames")
			assert.Equal(t, line-1, f.Line)
			break
		}
	}
	if callstack.Walks {
		assert.Positive(t, stacks.Keys(), "each capture here takes the slow way")
	}
}

func TestCaptureOfKnownStackDoesNotAllocate(t *testing.T) {
	for _, depth := range []int{callstack.DefaultDepth, callstack.MaxDepth} {
		stacks := callstack.NewTable(callstack.Config{Depth: depth})
		recurse(20, func() {
			assert.Zero(t, testing.AllocsPerRun(100, func() { stacks.Capture(0) }))
		})
	}
}

var initProbe, initSight = func() (*probe, sight) { p := newProbe(); return p, p.take() }()

func TestCaptureAtInit(t *testing.T) { initProbe.check(t, initSight) }
