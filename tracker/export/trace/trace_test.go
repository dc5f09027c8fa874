package trace_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
)

var update = flag.Bool("update", false, "write the golden files anew")

type event struct {
	Phase    string          `json:"ph"`
	Name     string          `json:"name"`
	Category string          `json:"cat"`
	ID       string          `json:"id"`
	Scope    string          `json:"s"`
	PID      *int            `json:"pid"`
	Time     *float64        `json:"ts"`
	Args     json.RawMessage `json:"args"`
}

// events writes a trace, reads it, and checks what every trace must hold.
func events(t *testing.T, r export.Record) []event {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, trace.Write(&b, r))
	var file struct {
		TraceEvents     []event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &file))
	assert.Contains(t, []string{"ms", "ns"}, file.DisplayTimeUnit)
	open := make(map[string]string)
	last := 0.0
	for _, e := range file.TraceEvents {
		require.NotEmpty(t, e.Name)
		require.NotNil(t, e.PID)
		require.NotNil(t, e.Time)
		require.GreaterOrEqual(t, *e.Time, last)
		last = *e.Time
		switch e.Phase {
		case "M":
		case "C":
			var values map[string]float64
			require.NoError(t, json.Unmarshal(e.Args, &values), "a counter's values are numbers")
			require.Len(t, values, 1)
			require.GreaterOrEqual(t, values["bytes"], 0.0)
		case "i":
			require.Contains(t, []string{"g", "p", "t"}, e.Scope)
		case "b":
			require.NotContains(t, open, e.ID)
			open[e.ID] = e.Name
		case "e":
			require.Equal(t, open[e.ID], e.Name)
			delete(open, e.ID)
		default:
			require.Fail(t, "a phase that overlapping slices and counters do not need", e.Phase)
		}
	}
	assert.Empty(t, open, "every slice ends")
	return file.TraceEvents
}

func values(t *testing.T, in []event, counter string) []int64 {
	var out []int64
	for _, e := range in {
		if e.Phase == "C" && e.Name == counter {
			var args struct{ Bytes int64 }
			require.NoError(t, json.Unmarshal(e.Args, &args))
			out = append(out, args.Bytes)
		}
	}
	return out
}

func names(in []event, phase string) []string {
	var out []string
	for _, e := range in {
		if e.Phase == phase {
			out = append(out, e.Name)
		}
	}
	return out
}

func TestWriteTellsTheStory(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	r := export.Take(tr)
	got := events(t, r)

	assert.Equal(t, []string{"mark 1", "mark 2", "mark 3", "out of memory", "mark 4"}, names(got, "i"))
	allocated := values(t, got, "allocated")
	assert.Zero(t, allocated[0])
	assert.Equal(t, int64(r.Snapshot.Allocated), allocated[len(allocated)-1])
	assert.Equal(t, allocated[len(allocated)-1], allocated[len(allocated)-2], "repeated at the end")
	assert.Equal(t, 1+2*1+3*8+1+1+1, len(allocated))
	reserved := values(t, got, "reserved")
	assert.Zero(t, reserved[0])
	assert.Equal(t, int64(r.Snapshot.Reserved), reserved[len(reserved)-1])
	assert.Len(t, values(t, got, "driver used"), 4+1, "at each mark and at the end")
}

func TestWriteStartsFromTheLevelsBefore(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxEvents: 5})
	exporttest.Train(t, tr)
	allocated := values(t, events(t, export.Take(tr)), "allocated")
	assert.Equal(t, int64(2*7168), allocated[0], "the weights, in blocks of 512 bytes")
}

func TestSectionsAreSlices(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxEvents: 3})
	before := tr.Section("before the history")
	for range 3 {
		tr.Track()
	}
	before.End()
	tr.Section("open at the end")
	got := events(t, export.Take(tr))
	assert.Equal(t, []string{"before the history", "open at the end"}, names(got, "b"))
	assert.Equal(t, []string{"before the history", "open at the end"}, names(got, "e"))
}

func TestRanksAreProcesses(t *testing.T) {
	r := export.Take(exporttest.New(t, tracker.Config{}))
	r.Snapshot.Origin = tracker.Origin{Rank: new(3), WorldSize: 8, Host: "node-1"}
	got := events(t, r)
	assert.Equal(t, 4, *got[0].PID)
	assert.Contains(t, string(got[0].Args), "rank 3 of 8 on node-1")
	r.History = nil
	events(t, r)
}

func TestGolden(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	step := tr.Section("step")
	weights, err := tr.AllocBytes(1<<20, tracker.Parameter)
	require.NoError(t, err)
	tr.Track()
	require.NoError(t, weights.Free())
	step.End()
	r := export.Take(tr)
	r.Snapshot.Origin = tracker.Origin{}
	var b bytes.Buffer
	require.NoError(t, trace.Write(&b, r))
	got := exporttest.Neutral(b.String())
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile("testdata/golden.json", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err, "run go test -update to make it")
	assert.Equal(t, string(want), got)
}
