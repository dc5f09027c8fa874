//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stackHere returns a walk and the stack it was taken on, through an inlined call.
func stackHere() (walked, stack []uintptr) {
	return func() ([]uintptr, []uintptr) { return walkAndCallers() }()
}

//go:noinline
func walkAndCallers() (walked, stack []uintptr) {
	walked, stack = make([]uintptr, MaxDepth), make([]uintptr, MaxDepth)
	n, _ := walk(&walked[0], nil, len(walked), 0)
	return walked[:n], stack[:runtime.Callers(2, stack)]
}

func TestDetermines(t *testing.T) {
	walked, stack := stackHere()
	determines := new(symbols).determines
	require.NotEmpty(t, stack)
	assert.True(t, determines(walked, stack))
	assert.False(t, determines(walked, nil))
	assert.False(t, determines(nil, stack))

	// The first is this package's own frame, which the stack does not have.
	for i := 1; i < len(walked); i++ {
		wrapper := !slices.Contains(stack, walked[i])
		assert.Equal(t, wrapper, determines(slices.Delete(slices.Clone(walked), i, i+1), stack), "without frame %d", i)
		assert.False(t, determines(walked[:i], stack), "cut at frame %d", i)
		assert.True(t, determines(slices.Insert(slices.Clone(walked), i, 1), stack), "with a wrapper before frame %d", i)
	}
	for n := 1; n <= len(stack); n++ {
		assert.True(t, determines(walked, stack[:n]), "cut at depth %d", n)
	}
}

// The hash that walk folds in is the one of the words it writes.
func TestWalkHash(t *testing.T) {
	var words [1 + MaxDepth]uintptr
	words[0] = 42
	n, hash := walk(&words[1], nil, MaxDepth, hashWords(words[:1]))
	require.Positive(t, n)
	assert.Equal(t, hashWords(words[:1+n]), hash)
	assert.Zero(t, words[1+n])
}

func TestWalkKeepsToLimit(t *testing.T) {
	var whole [MaxDepth]uintptr
	total, _ := walk(&whole[0], nil, MaxDepth, 0)
	require.Greater(t, total, 2)
	for limit := 1; limit < total+3; limit++ {
		var part [MaxDepth]uintptr
		n, _ := walk(&part[0], nil, limit, 0)
		assert.Equal(t, min(limit, total), n)
		assert.Equal(t, whole[1:n], part[1:n]) // the first is the call itself
		assert.Zero(t, part[n])
	}
}
