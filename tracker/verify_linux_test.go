package tracker_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// failsItsTests fails in each way that a check of a tracker can, right after it has
// printed on which line.
func failsItsTests() {
	leaky := func() *tracker.MemTracker {
		tr := must(tracker.New(tracker.Config{Device: must(sim.New(sim.Config{})), Report: io.Discard}))
		must(tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Activation))
		return tr
	}
	closed := func() *tracker.MemTracker {
		tr := leaky()
		tr.Close()
		return tr
	}
	next := func() {
		_, _, line, _ := runtime.Caller(1)
		fmt.Printf("want verify_linux_test.go:%d:\n", line+1)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{
		{Name: "leak", F: func(t *testing.T) {
			next()
			tracker.VerifyNoLeaks(t, leaky())
		}},
		{Name: "peak", F: func(t *testing.T) {
			next()
			tracker.LimitPeak(t, leaky(), 1)
		}},
		{Name: "closed leak", F: func(t *testing.T) {
			next()
			tracker.VerifyNoLeaks(t, closed())
		}},
		{Name: "closed peak", F: func(t *testing.T) {
			next()
			tracker.LimitPeak(t, closed(), alloc.GiB)
		}},
		{Name: "no leak", F: func(t *testing.T) {
			next()
			tracker.VerifyNoLeaks(t, nil)
		}},
		{Name: "no peak", F: func(t *testing.T) {
			next()
			tracker.LimitPeak(t, nil, alloc.GiB)
		}},
	}, nil, nil)
}

func TestFailuresAreAtTheCallersLine(t *testing.T) {
	out, err := child(t, "fails its tests").Output()
	require.Error(t, err)
	text := string(out)
	wanted := 0
	for line := range strings.Lines(text) {
		if want, ok := strings.CutPrefix(strings.TrimSpace(line), "want "); ok {
			wanted++
			assert.Contains(t, strings.ReplaceAll(text, "want "+want, ""), want)
		}
	}
	assert.Equal(t, 6, wanted)
	assert.NotContains(t, text, "verify.go")
	assert.Contains(t, text, "there is no tracker to ask: it is nil")
}
