package callstack_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Goroutines grow their stacks from the smallest size while they capture at each level, and a collector, which shrinks stacks,
// runs all the time. All take the same way down, so all must see the same IDs.
func TestCaptureWhileStacksMove(t *testing.T) {
	const goroutines, levels, rounds = 32, 60, 4
	p := newProbe()
	stop := collect()
	defer stop()
	seen := make([][]sight, goroutines)
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for range rounds {
				var fresh sync.WaitGroup
				fresh.Go(func() { grow(levels, func() { seen[i] = append(seen[i], p.take()) }) })
				fresh.Wait()
			}
		})
	}
	all.Wait()

	for _, sights := range seen {
		assert.Len(t, sights, rounds*levels)
		for level, s := range sights {
			p.check(t, s)
			assert.Equal(t, seen[0][level%levels].ids[0], s.ids[0])
		}
	}
	// Below the table's depth each level is a stack of its own, from there on all are the same.
	assert.Less(t, p.stacks.Len(), callstack.DefaultDepth)
	assert.Greater(t, p.stacks.Len(), callstack.DefaultDepth/2)
}

// grow looks at each of its levels, and takes a kibibyte of stack at each.
//
//go:noinline
func grow(levels int, look func()) {
	var ballast [1024]byte
	look()
	if levels > 1 {
		grow(levels-1, look)
	}
	runtime.KeepAlive(&ballast)
}

// collect runs the collector until stop is called.
func collect() (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				runtime.GC()
			}
		}
	})
	return func() { close(quit); running.Wait() }
}

// Goroutines race to be the first to intern the same and different stacks, through several growths of the table.
func TestInternFromManyGoroutines(t *testing.T) {
	const goroutines, stacks = 8, 2000
	table := callstack.NewTable(callstack.Config{})
	ids := make([][]callstack.ID, goroutines)
	var all sync.WaitGroup
	for g := range goroutines {
		ids[g] = make([]callstack.ID, stacks)
		all.Go(func() {
			for i := range stacks {
				n := (i*(g+1) + g) % stacks // each in an order of its own, not all of them
				ids[g][n] = table.Intern(numbered(n))
				assert.Equal(t, numbered(n), table.PCs(ids[g][n]))
			}
		})
	}
	all.Wait()

	distinct := make(map[callstack.ID]bool)
	for n := range stacks {
		id := table.Intern(numbered(n))
		distinct[id] = true
		for g := range goroutines {
			assert.Contains(t, []callstack.ID{0, id}, ids[g][n])
		}
	}
	assert.Len(t, distinct, stacks)
	assert.Equal(t, stacks, table.Len())
}

// numbered returns a stack that differs from those with other numbers in few bits.
func numbered(n int) []uintptr { return []uintptr{0x400000, 0x400000 + uintptr(n), 0x500000} }

// The number is the one that a trace has, whatever happens to the goroutine and its stack, and no later goroutine gets it.
func TestGoroutine(t *testing.T) {
	const goroutines, rounds = 20, 5
	stop := collect()
	defer stop()
	seen := make(map[uint64]bool)
	var mu sync.Mutex
	for range rounds {
		var all sync.WaitGroup
		for range goroutines {
			all.Go(func() {
				number := callstack.Goroutine()
				assert.Regexp(t, fmt.Sprintf(`^goroutine %d \[running\]:`, number), string(debug.Stack()))
				grow(40, func() { assert.Equal(t, number, callstack.Goroutine()) })
				mu.Lock()
				defer mu.Unlock()
				assert.False(t, seen[number], "two goroutines are number %d", number)
				seen[number] = true
			})
		}
		all.Wait()
	}
}
