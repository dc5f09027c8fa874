package tracker_test

import (
	"path"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestProcessorTimeOfASection(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{Host: "detail"}})
	s := tr.Section("busy")
	if s.Data().CPUTime < 0 {
		t.Skip("this system tells no processor time")
	}
	for s.Data().CPUTime < 5*time.Millisecond { // which keeps a processor busy
	}
	s.End()
	d := s.Data()
	assert.GreaterOrEqual(t, d.CPUTime, 5*time.Millisecond)
	assert.Contains(t, d.Table(), "s of CPU (busy)")
	for _, r := range tr.Profile() {
		assert.Equal(t, d.CPUTime, r.CPUTime)
	}
}

func TestProcessorTimeIsMeasuredWhenAskedFor(t *testing.T) {
	for _, cfg := range []tracker.SectionConfig{{}, {Host: "none", GCBefore: true}} {
		tr, _ := open(t, tracker.Config{Sections: cfg})
		d := tr.Do("s", func() {}).Data()
		assert.Equal(t, time.Duration(-1), d.CPUTime)
		assert.NotContains(t, d.Table(), "CPU")
		for _, r := range tr.Profile() {
			assert.Equal(t, time.Duration(-1), r.CPUTime)
			assert.Nil(t, r.Heap)
		}
	}
}

func outer(tr *tracker.MemTracker) *tracker.Section { return inner(tr) }
func inner(tr *tracker.MemTracker) *tracker.Section { return tr.Do("s", func() {}) }

func TestWholeStackOfASection(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	d := outer(tr).Data()
	functions := func(s mem.Stack) (names []string) {
		for _, f := range s[:3] {
			names = append(names, path.Base(f.Function))
		}
		return names
	}
	want := []string{"tracker_test.inner", "tracker_test.outer", "tracker_test.TestWholeStackOfASection"}
	assert.Equal(t, want, functions(d.Stack))
	assert.Equal(t, d.Stack[0], d.CallSite)
	for _, r := range tr.Profile() {
		assert.Equal(t, want, functions(r.Stack))
	}
}
