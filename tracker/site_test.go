package tracker_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// bySection prints what the call stacks of each section hold.
func bySection(s *snapshot.Snapshot) map[string]string {
	type tallies struct{ live, peak, total mem.Tally }
	sums := make(map[string]tallies)
	for site := range s.CallSites() {
		sum := sums[site.Section]
		sums[site.Section] = tallies{sum.live.Add(site.Live), sum.peak.Add(site.Peak), sum.total.Add(site.Total)}
	}
	out := make(map[string]string)
	for section, sum := range sums {
		out[section] = fmt.Sprintf("%v live; %v at the peak; %v ever", sum.live, sum.peak, sum.total)
	}
	return out
}

// inSections has one line allocate in several sections: three buffers in each, one of which stays.
func inSections(t *testing.T, tr *tracker.MemTracker, shape func(i int) alloc.Shape) {
	for i := range 3 {
		for _, name := range []string{"", "a", "b"} {
			var section *tracker.Section
			if name != "" {
				section = tr.Section(name)
			}
			buf, err := tr.Alloc(shape(i), alloc.Uint8, tracker.Activation)
			require.NoError(t, err)
			if i > 0 {
				require.NoError(t, buf.Free())
			}
			if section != nil {
				section.End()
			}
		}
	}
}

func TestSitesTellTheirSection(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	inSections(t, tr, func(int) alloc.Shape { return alloc.Shape{100} })
	s := tr.Snapshot()
	trackertest.RequireExact(t, s)
	want := map[string]string{
		"":  "1 buffer, 100 B live; 2 buffers, 200 B at the peak; 3 buffers, 300 B ever",
		"a": "1 buffer, 100 B live; 1 buffer, 100 B at the peak; 3 buffers, 300 B ever",
		"b": "1 buffer, 100 B live; 1 buffer, 100 B at the peak; 3 buffers, 300 B ever",
	}
	assert.Equal(t, want, bySection(s))
	assert.Equal(t, want, bySection(tr.LightSnapshot()))

	text, err := s.MarshalJSON()
	require.NoError(t, err)
	read, err := snapshot.Read(bytes.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, slices.Collect(s.CallSites()), slices.Collect(read.CallSites()))
	assert.Equal(t, slices.Collect(s.Allocations()), slices.Collect(read.Allocations()))

	assert.Equal(t, 1, len(tr.Track().Delta), "sections do not split a group")
}

// TestShapesLongGoneTellTheirSection: what is summed up keeps it.
func TestShapesLongGoneTellTheirSection(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	n := 0
	inSections(t, tr, func(i int) alloc.Shape {
		if i == 0 {
			return alloc.Shape{1 << 20} // stays
		}
		n++
		return alloc.Shape{n}
	})
	section := tr.Section("sweep")
	for i := range 3000 { // more shapes than the ledger keeps
		require.NoError(t, take(t, tr, tracker.Temporary, i).Free())
	}
	section.End()
	s := tr.Snapshot()
	trackertest.RequireExact(t, s)
	retired := slices.DeleteFunc(slices.Collect(s.CallSites()), func(site snapshot.CallSiteStats) bool { return site.DType.Bits() > 0 })
	require.NotEmpty(t, retired)
	assert.Equal(t, "1 buffer, 1.0 MiB live; 1 buffer, 1.0 MiB at the peak; 3 buffers, 1.0 MiB ever", bySection(s)["a"])
	assert.Contains(t, bySection(s)["sweep"], "3000 buffers, 17.2 MiB ever")

	text, err := s.MarshalJSON()
	require.NoError(t, err)
	read, err := snapshot.Read(bytes.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, bySection(s), bySection(read))
}

// older is a snapshot from before sites told their section.
const older = `{"schema":"gpumemtrack.snapshot","version":1,"time":"2026-11-20T03:30:04Z",
"stacks":[[{"function":"main.f","file":"f.go","line":3}]],
"sites":[{"kind":"Input","dtype":"uint8","shape":[8],"stack":0,"live_count":3,"peak_count":4,"total_count":5}],
"allocations":[{"seq":1,"site":0,"section":"a","address":1},{"seq":2,"site":0,"section":"a","address":2},{"seq":3,"site":0,"address":3}]}`

func TestSectionsOfOlderSnapshots(t *testing.T) {
	s, err := snapshot.Read(strings.NewReader(older))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"":  "1 buffer, 8 B live; 4 buffers, 32 B at the peak; 3 buffers, 24 B ever",
		"a": "2 buffers, 16 B live; 0 buffers, 0 B at the peak; 2 buffers, 16 B ever",
	}, bySection(s))
	var sections []string
	for a := range s.Allocations() {
		sections = append(sections, a.Section)
	}
	assert.Equal(t, []string{"a", "a", ""}, sections)

	_, err = snapshot.Read(strings.NewReader(strings.Replace(older, `"live_count":3`, `"live_count":1`, 1)))
	assert.ErrorContains(t, err, `read snapshot: allocation 1: in section "a", but no buffer of call site 0 is left`)
}
