//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sameStack returns a function that captures the same stack each time, and where predict looks for it.
func sameStack(t *testing.T, cfg Config, skip int) (capture func() ID, recent *recentKey) {
	stacks := NewTable(cfg)
	capture = func() (id ID) {
		wait(func() { id = captureBelow(stacks, 16, skip) })
		return id
	}
	capture() // interns
	id := capture()
	for i := range stacks.recent {
		if recent = &stacks.recent[i]; recent.key.Load() != nil {
			require.Equal(t, id, recent.key.Load().id)
			return capture, recent
		}
	}
	require.Fail(t, "no key is remembered")
	return nil, nil
}

//go:noinline
func captureBelow(stacks *Table, frames, skip int) ID {
	if frames > 0 {
		return captureBelow(stacks, frames-1, skip)
	}
	return stacks.Capture(skip)
}

// A key predicts the stack if all of it is what a walk would find, and not otherwise.
func TestPredictionIsExact(t *testing.T) {
	const wrong = ID(77)
	for _, depth := range []int{4, DefaultDepth, MaxDepth} {
		for skip := range 3 {
			t.Run(fmt.Sprintf("depth=%d/skip=%d", depth, skip), func(t *testing.T) {
				capture, recent := sameStack(t, Config{Depth: depth}, skip)
				key := recent.key.Load()
				changed := func(change func(*interned)) ID {
					other := *key
					other.id, other.words, other.offsets = wrong, slices.Clone(key.words), slices.Clone(key.offsets)
					change(&other)
					recent.key.Store(&other)
					return capture()
				}
				frames := len(key.offsets)
				require.Equal(t, frames+1, len(key.words))
				assert.Equal(t, wrong, changed(func(*interned) {}), "nothing is predicted")
				for i := range key.words {
					assert.Equal(t, key.id, changed(func(k *interned) { k.words[i]++ }), "word %d", i)
				}
				for i := 1; i < frames; i++ {
					assert.Equal(t, key.id, changed(func(k *interned) { k.offsets[i] += 16 }), "offset %d", i)
				}
				assert.Equal(t, key.id, changed(func(k *interned) { k.offsets[frames-1] = math.MaxUint32 }))
				assert.Equal(t, key.id, changed(func(k *interned) {
					k.offsets, k.words = slices.Delete(k.offsets, 7, 8), slices.Delete(k.words, 8, 9)
				}), "one level of the recursion is missing, of which all have the same return address")
				assert.Equal(t, key.id, changed(func(k *interned) {
					k.whole, k.offsets, k.words = true, k.offsets[:frames-1], k.words[:frames]
				}), "the walk would go on")
			})
		}
	}
}

// Stacks that take turns do not drive each other out all the time.
func TestKeyStaysForSomeStacks(t *testing.T) {
	capture, recent := sameStack(t, Config{}, 0)
	key := recent.key.Load()
	other := *key
	other.words = make([]uintptr, len(key.words))
	recent.key.Store(&other)
	stays := recent.wait
	require.Positive(t, stays)
	for range stays {
		assert.Equal(t, key.id, capture())
		require.Same(t, &other, recent.key.Load())
	}
	assert.Equal(t, key.id, capture())
	assert.Same(t, key, recent.key.Load())
}
