//go:build cgo

package callstack_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/callback"
)

func init() {
	places["cgo callback"] = callback.Call
	places["cgo twice"] = func(look func()) { callback.Call(func() { callback.Call(look) }) }
	places["cgo thread"] = func(look func()) {
		if err := callback.Thread(look); err != nil {
			panic(err)
		}
	}
	places["cgo callback, deep"] = func(look func()) { callback.Call(func() { recurse(100, look) }) }
}

// Below a callback the frames are the same; the stacks differ only beyond the C frames.
func TestCaptureTellsCallersOfCApart(t *testing.T) {
	p := newProbe()
	var seen []sight
	look := func() { seen = append(seen, p.take()) }
	for range 2 {
		callback.Call(look)
		callback.Call(look)
		require.NoError(t, callback.Thread(look))
	}
	require.Len(t, seen, 6)
	for i, s := range seen {
		p.check(t, s)
		assert.Equal(t, seen[i%3].ids, s.ids)
	}
	assert.Equal(t, 3, p.stacks.Len())
}
