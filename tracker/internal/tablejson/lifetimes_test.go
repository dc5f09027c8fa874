package tablejson

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestWindowsOfNoUseAreLeftOut: without the live buffers nobody is named, and a small dump has better use for the room.
func TestWindowsOfNoUseAreLeftOut(t *testing.T) {
	var units survival.Units
	var line, path survival.Unit
	units.Freed(&line, &path, 10*time.Minute, time.Hour, 7)
	of := tables.Tables{
		Stacks: new(tables.StackTable), Lines: map[mem.Frame]*survival.Unit{{Function: "f"}: &line},
		Paths: map[tables.StackID]*survival.Unit{0: &path},
	}
	text := func() string {
		var b bytes.Buffer
		out := jsonstream.NewWriter(&b)
		out.Head(struct{}{})
		WriteSnapshot(out, &of, nil)
		assert.NoError(t, out.Flush())
		return b.String()
	}
	assert.Contains(t, text(), `"paths":`)
	assert.Equal(t, 2, strings.Count(text(), `"old":`), "of the line and of the path")
	of.Paths = nil
	assert.NotContains(t, text(), `"old"`)
	assert.NotContains(t, text(), `"paths":`)
	assert.Contains(t, text(), `"ages"`)
}
