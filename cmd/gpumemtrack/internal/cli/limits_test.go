package cli

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

func TestDefaultMemory(t *testing.T) {
	if addressSpace() > 0 {
		t.Skip("the address space is limited here")
	}
	assert.Equal(t, int64(6<<30), defaultMemory(24<<30, true))
	assert.Equal(t, int64(1<<30), defaultMemory(3<<30, true), "the least")
	assert.Equal(t, int64(1<<30), defaultMemory(0, true))
	assert.Equal(t, int64(2<<30), defaultMemory(0, false), "the system does not say what is available")
}

func TestLimitsOfFlags(t *testing.T) {
	a := App{maxFile: alloc.GiB, maxMemory: 3 * alloc.GiB}
	assert.Equal(t, bounded.Limits{File: 1 << 30, Memory: 3 << 30}, limitsOf(&a))
	assert.Equal(t, int64(1<<40), limitsOf(&App{maxMemory: 1}).File)
	assert.GreaterOrEqual(t, limitsOf(&App{}).Memory, int64(1<<30))
}

// TestWholeOf: from the part that was read, the error of a file that is too large says what all of it takes.
func TestWholeOf(t *testing.T) {
	for name, test := range map[string]struct {
		limit      bounded.LimitError
		read, size int64
		want       alloc.Bytes
	}{
		"memory, a quarter was read":     {bounded.LimitError{Memory: true, Limit: 100, Read: 250}, 250, 1000, 400},
		"memory, packed":                 {bounded.LimitError{Memory: true, Limit: 100, Read: 5000}, 500, 1000, 200},
		"memory, with a buffer of all":   {bounded.LimitError{Memory: true, Limit: 100, Read: 10}, 1000, 1000, 10000},
		"the file":                       {bounded.LimitError{Limit: 99, Read: 100}, 128, 1000, 1000},
		"the file, packed":               {bounded.LimitError{Limit: 9999, Read: 10000}, 1000, 3000, 30000},
		"of unknown size":                {bounded.LimitError{Memory: true, Limit: 100, Read: 250}, 250, 0, 0},
		"all of it was read":             {bounded.LimitError{Memory: true, Limit: 100, Read: 1000}, 1000, 1000, 0},
		"nothing was read":               {bounded.LimitError{Memory: true, Limit: 100}, 0, 1000, 0},
		"more than any machine can have": {bounded.LimitError{Memory: true, Limit: 1 << 40, Read: 1}, 1, math.MaxInt64, 0},
	} {
		assert.Equal(t, test.want, wholeOf(&test.limit, test.read, test.size), name)
	}
}
