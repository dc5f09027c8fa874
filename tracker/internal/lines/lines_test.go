package lines_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestLineNames(t *testing.T) {
	frame := func(file string) mem.Frame { return mem.Frame{Function: "m/x.f", File: file, Line: 9} }
	a, b, far := frame("/u/a/model/x.go"), frame("/u/b/model/x.go"), frame("/v/a/model/x.go")
	other := frame("y.go")
	names := lines.NewNames(slices.Values([]mem.Frame{a, b, other, a}))
	assert.Equal(t, "a/model/x.go:9 x.f", names.Of(a))
	assert.Equal(t, "b/model/x.go:9 x.f", names.Of(b))
	assert.Equal(t, "y.go:9 x.f", names.Of(other))

	two := lines.NewNames(slices.Values([]mem.Frame{a}), slices.Values([]mem.Frame{far}))
	assert.Equal(t, "x.go:9 x.f", two.Of(a), "processes may be built in different folders")
	assert.Equal(t, two.Of(a), two.Of(far))

	twins := lines.NewNames(slices.Values([]mem.Frame{a, b}), slices.Values([]mem.Frame{far}))
	assert.Equal(t, twins.Of(a), twins.Of(far))
	assert.NotEqual(t, twins.Of(a), twins.Of(b))
	assert.Equal(t, "unknown", names.Of(mem.Frame{}))

	windows := []mem.Frame{frame(`C:\u\a\train.py`), frame(`C:\u\b\train.py`)}
	assert.Equal(t, "train.py:9 x.f", windows[0].String())
	assert.Equal(t, "b/train.py:9 x.f", lines.NewNames(slices.Values(windows)).Of(windows[1]))
	assert.Equal(t, `a\b.py:9 x.f`, frame(`/u/a\b.py`).String(), "a name may have a backslash")

	same := frame("x.go")
	same.Function = "n/x.f" // of the same name in all that could tell them apart
	assert.Equal(t, "x.go:9 x.f", lines.NewNames(slices.Values([]mem.Frame{frame("x.go"), same})).Of(same))
}
