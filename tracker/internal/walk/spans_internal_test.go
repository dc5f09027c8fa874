package walk

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestRunsAreShort: a run is divided when it is longer than maxRun, and only then, so that there are few and an insertion
// moves few spans.
func TestRunsAreShort(t *testing.T) {
	var spans Spans
	for i := range maxRun {
		spans.Insert(Span{Ptr: alloc.Ptr(10 * i), Size: 1})
	}
	require.Len(t, spans.runs, 1)
	spans.Insert(Span{Ptr: 10 * maxRun, Size: 1})
	require.Len(t, spans.runs, 2)

	random := rand.New(rand.NewPCG(1, 2))
	spans = Spans{}
	for range 100 * maxRun {
		if p := alloc.Ptr(random.Uint32()); spans.At(p) == nil {
			spans.Insert(Span{Ptr: p, Size: 1})
		}
	}
	n := 0
	for _, run := range spans.runs {
		assert.NotEmpty(t, run)
		assert.LessOrEqual(t, len(run), maxRun)
		n += len(run)
	}
	assert.Less(t, len(spans.runs), 3*n/maxRun)
}
