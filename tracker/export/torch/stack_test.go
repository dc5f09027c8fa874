package torch

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStacksAreCounted: what stacks and frames take is counted against the limit, neither far less, or a hostile file takes more
// memory than it may, nor far more, or an ordinary one is refused.
func TestStacksAreCounted(t *testing.T) {
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	const dicts = 250
	file := func(stacks, frames int) string {
		var b strings.Builder
		b.WriteString("\x80\x04}(" + key("segments") + "]" + key("names") + "](")
		for i := range dicts { // the frames, which the memo has from 0 on
			b.WriteString("}\x94(" + key("name") + key(fmt.Sprintf("a rather long name of a function %d", i)) + "u")
		}
		b.WriteString("e" + key("device_traces") + "](](")
		for i := range stacks {
			b.WriteString("}(" + key("action") + key("snapshot") + key("frames") + "](")
			for j := range frames {
				b.Write([]byte{'h', byte((i + j*(1+i/dicts)) % dicts)})
			}
			b.WriteString("eu")
		}
		b.WriteString("eeu.")
		return b.String()
	}
	// read counts the bytes that may still be used after the file is read, and perhaps its stacks.
	read := func(text string, stacks bool) (left, held int64) {
		s, err := readRaw(strings.NewReader(text), 0)
		require.NoError(t, err)
		if stacks {
			held = -liveBytes()
			for _, err := range s.events(0) {
				require.NoError(t, err)
			}
			held += liveBytes()
		}
		const unit = 256
		for s.Use(unit) == nil {
			left += unit
		}
		return left, held
	}
	for name, text := range map[string]string{"long stacks": file(1000, 200), "short stacks": file(20_000, 2)} {
		without, _ := read(text, false)
		with, held := read(text, true)
		assert.Greater(t, without-with, held*2/3, name)
		assert.Less(t, without-with, held*2, name)
	}
}

// liveBytes is what the program holds on the heap.
func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
