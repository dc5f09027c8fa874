package callstack_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

var benchDepths = []int{16, 24, 32}

// recurse calls f below n frames of its own.
//
//go:noinline
func recurse(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	recurse(n-1, f)
	runtime.KeepAlive(&n)
}

// atDepth calls f where f's caller's stack has exactly frames frames, f's own and the goroutine's exit included.
func atDepth(frames int, f func()) {
	var pcs [callstack.MaxDepth]uintptr
	recurse(0, func() { frames -= runtime.Callers(1, pcs[:]) })
	recurse(frames, f)
}

func benchDepth(b *testing.B, run func(b *testing.B)) {
	for _, frames := range benchDepths {
		b.Run(fmt.Sprintf("frames=%d", frames), func(b *testing.B) {
			atDepth(frames, func() {
				b.ReportAllocs()
				run(b)
			})
		})
	}
}

func BenchmarkCallstack(b *testing.B) {
	stacks := callstack.NewTable(callstack.Config{})
	benchDepth(b, func(b *testing.B) {
		for b.Loop() {
			stacks.Capture(0)
		}
	})
}

// A table for deeper stacks costs a larger buffer at each capture.
func BenchmarkCallstackDeepTable(b *testing.B) {
	stacks := callstack.NewTable(callstack.Config{Depth: callstack.MaxDepth})
	benchDepth(b, func(b *testing.B) {
		for b.Loop() {
			stacks.Capture(0)
		}
	})
}

func BenchmarkCallstackRuntimeCallers(b *testing.B) {
	benchDepth(b, func(b *testing.B) {
		var pcs [callstack.DefaultDepth]uintptr
		for b.Loop() {
			runtime.Callers(1, pcs[:])
		}
	})
}

// Each capture is of another of 4096 stacks of about 32 frames, so that neither the processor's branch predictor nor its nearest
// cache knows what comes. The calls that build the stack are in the time.
func BenchmarkCallstackManyStacks(b *testing.B) {
	stacks := callstack.NewTable(callstack.Config{})
	run := func(leaf func()) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			random := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				branch(24, random.Uint32()%4096, leaf)
			}
		}
	}
	b.Run("with", run(func() { stacks.Capture(0) }))
	b.Run("without", run(func() {}))
}

// Stacks of about 32 frames that take turns, and that differ in one line.
func BenchmarkCallstackTurns(b *testing.B) {
	for name, paths := range map[string][]uint32{
		"same":      {0},
		"innermost": {0, 1 << 23},
		"middle":    {0, 1 << 12},
		"outermost": {0, 1},
		"eight":     {0, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20},
	} {
		b.Run(name, func(b *testing.B) {
			stacks := callstack.NewTable(callstack.Config{})
			for _, capture := range []bool{true, false} {
				b.Run(fmt.Sprintf("capture=%t", capture), func(b *testing.B) {
					leaf := func() {}
					if capture {
						leaf = func() { stacks.Capture(0) }
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						branch(24, paths[i%len(paths)], leaf)
					}
				})
			}
		})
	}
}

// The first capture of each stack.
func BenchmarkCallstackNew(b *testing.B) {
	b.ReportAllocs()
	stacks := callstack.NewTable(callstack.Config{})
	path := uint32(0)
	for b.Loop() {
		branch(24, path, func() { stacks.Capture(0) })
		path++
	}
}

// branch calls f below n frames, which stand at one of two lines each, as path says.
//
//go:noinline
func branch(n int, path uint32, f func()) {
	switch {
	case n == 0:
		f()
	case path&1 == 0:
		branch(n-1, path>>1, f)
	default:
		branch(n-1, path>>1, f)
	}
	runtime.KeepAlive(&n)
}

// Many goroutines look up their own stacks, of 24 frames, in one table.
func BenchmarkCallstackParallel(b *testing.B) {
	stacks := callstack.NewTable(callstack.Config{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		atDepth(24, func() {
			for pb.Next() {
				stacks.Capture(0)
			}
		})
	})
}

func BenchmarkCallstackGoroutine(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		callstack.Goroutine()
	}
}
