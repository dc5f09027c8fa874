package trace_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// rows returns the names of the slices of each row, in the order of their beginnings.
func rows(in []event) map[string][]string {
	out := make(map[string][]string)
	for _, e := range in {
		if e.Phase == "b" {
			out[e.ID.Local] = append(out[e.ID.Local], e.Name)
		}
	}
	return out
}

func TestPartsLieInTheirSection(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	tr.Do("step", func() {
		tr.Do("forward", func() { tr.Do("features/conv1", func() {}) })
		tr.Do("backward", func() {})
	})
	tr.Do("step", func() {})
	assert.Equal(t, map[string][]string{
		"1": {"step", "forward", "features/conv1", "backward"},
		"5": {"step"},
	}, rows(events(t, tr.Dump())))
}

func TestWhatDoesNotNestHasARowOfItsOwn(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	step := tr.Section("step")
	copying, loading := step.Section("copy"), step.Section("load") // at the same time
	copying.End()
	loading.End()
	late := step.Section("late")
	step.End()
	late.End()
	// Which of the two is it a part of?
	one, other := beside(t, tr, "step"), beside(t, tr, "step")
	one.Section("forward").End()
	one.End()
	other.End()
	assert.Equal(t, map[string][]string{
		"1": {"step", "copy"}, "3": {"step/load"}, "4": {"step/late"},
		"5": {"step"}, "6": {"step"}, "7": {"step/forward"},
	}, rows(events(t, tr.Dump())))
}

// beside opens a section in a goroutine of its own, which lives as long as the test.
func beside(t *testing.T, tr *tracker.MemTracker, name string) *tracker.Section {
	opened := make(chan *tracker.Section)
	go func() {
		opened <- tr.Section(name)
		<-t.Context().Done()
	}()
	return <-opened
}

func TestSectionsAtTheEndsOfTheHistory(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxEvents: 4})
	before := tr.Section("before the history")
	within := tr.Section("within")
	for range 3 {
		tr.Track()
	}
	within.End()
	before.End()
	tr.Do("open at the end", func() {
		tr.Section("its part")
		assert.Equal(t, map[string][]string{
			"1": {"before the history", "within"},
			"3": {"open at the end", "its part"},
		}, rows(events(t, tr.Dump())))
	})
}

func TestSectionsOfADamagedHistory(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	tr.Do("step", func() {})
	tr.Do("step", func() {})
	for _, damage := range [][2]string{
		{`"number":2`, `"number":1`}, {`"section_end"`, `"section_begin"`}, {`"section_begin"`, `"section_end"`},
	} {
		text, err := json.Marshal(tr.Dump())
		require.NoError(t, err)
		r, err := snapshot.ReadDump(bytes.NewReader(bytes.ReplaceAll(text, []byte(damage[0]), []byte(damage[1]))))
		require.NoError(t, err)
		events(t, r)
	}
}

func TestEverySectionIsASlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr := exporttest.New(t, tracker.Config{MaxEvents: rapid.IntRange(1, 60).Draw(rt, "history")})
		open := []*tracker.Section{beside(t, tr, "a")}
		for range rapid.IntRange(0, 60).Draw(rt, "events") {
			switch i := rapid.IntRange(0, len(open)).Draw(rt, "which"); {
			case i == len(open):
				open = append(open, beside(t, tr, rapid.SampledFrom([]string{"a", "b", "a/b"}).Draw(rt, "name")))
			case rapid.Bool().Draw(rt, "ends"):
				open[i].End()
				open = append(open[:i], append(open[i+1:], open[i].Section("after its end"))...)
			default:
				open = append(open, open[i].Section(rapid.SampledFrom([]string{"c", "d"}).Draw(rt, "part")))
			}
		}
		r := tr.Dump()
		assert.ElementsMatch(rt, exporttest.Sections(r), ofSlices(events(rt, r)))
	})
}

// ofSlices returns the slices as sections, each with the path of its row.
func ofSlices(in []event) []exporttest.Section {
	var out []exporttest.Section
	open := make(map[string][]exporttest.Section)
	for _, e := range in {
		row := open[e.ID.Local]
		switch e.Phase {
		case "b":
			path := e.Name
			if len(row) > 0 {
				path = row[len(row)-1].Path + "/" + path
			}
			open[e.ID.Local] = append(row, exporttest.Section{Path: path, Start: *e.Time})
		case "e":
			last := row[len(row)-1]
			last.End = *e.Time
			out, open[e.ID.Local] = append(out, last), row[:len(row)-1]
		}
	}
	return out
}
