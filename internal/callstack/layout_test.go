//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLayoutHolds(t *testing.T) {
	assert.True(t, boundsHold(0), "the bounds of a goroutine's stack are not where walk reads them")
	assert.True(t, walkHolds())
	assert.NotZero(t, findGoid(searched), "no place in runtime.g has the goroutine's number, or several have")
}

func TestMovedBoundsAreNoticed(t *testing.T) {
	for moved := uintptr(8); moved < searched; moved += 8 {
		assert.False(t, boundsHold(moved), "moved by %d bytes", moved)
	}
}

func TestMovedNumberIsNotFound(t *testing.T) {
	assert.Zero(t, findGoid(goidAt))
	assert.Equal(t, goidAt, findGoid(goidAt+8))
}

func TestCaptureWithMovedLayout(t *testing.T) {
	defer func() { walks = boundsHold(0) }()
	walks = boundsHold(16)
	for _, depth := range []int{DefaultDepth, MaxDepth} {
		stacks := NewTable(Config{Depth: depth})
		for skip := -1; skip < 3; skip++ {
			var want [MaxDepth]uintptr
			n := runtime.Callers(max(skip, 0)+1, want[:])
			got := stacks.PCs(stacks.Capture(skip))
			require.Len(t, got, n)
			assert.Equal(t, want[1:n], got[1:], "skip %d", skip) // the first are two lines
		}
		assert.Zero(t, stacks.Keys(), "a walk was taken")
	}
}

func TestGoroutineWithMovedLayout(t *testing.T) {
	defer func(at uintptr) { goidAt = at }(goidAt)
	number := Goroutine()
	goidAt = findGoid(8)
	assert.Equal(t, number, Goroutine())
	wait(func() { assert.NotEqual(t, number, Goroutine()) })
}
