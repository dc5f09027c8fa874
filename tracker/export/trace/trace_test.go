package trace_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var update = flag.Bool("update", false, "write the golden files anew")

type event struct {
	Phase    string                 `json:"ph"`
	Name     string                 `json:"name"`
	Category string                 `json:"cat"`
	ID       struct{ Local string } `json:"id2"`
	Scope    string                 `json:"s"`
	PID      *int                   `json:"pid"`
	TID      int                    `json:"tid"`
	Time     *float64               `json:"ts"`
	Args     json.RawMessage        `json:"args"`
}

// events writes a trace, reads it, and checks what every trace must hold.
func events(t require.TestingT, r *snapshot.Dump) []event {
	var b bytes.Buffer
	require.NoError(t, trace.Write(&b, r))
	var file struct {
		TraceEvents     []event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &file))
	assert.Contains(t, []string{"ms", "ns"}, file.DisplayTimeUnit)
	open := make(map[string][]string)
	last := make(map[int]float64) // by process
	for _, e := range file.TraceEvents {
		require.NotEmpty(t, e.Name)
		require.NotNil(t, e.PID)
		require.NotNil(t, e.Time)
		require.GreaterOrEqual(t, *e.Time, last[*e.PID])
		last[*e.PID] = *e.Time
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
			require.NotEmpty(t, e.ID.Local, "an id of all processes would mix ranks")
			open[e.ID.Local] = append(open[e.ID.Local], e.Name)
		case "e":
			inside := open[e.ID.Local]
			require.NotEmpty(t, inside)
			require.Equal(t, inside[len(inside)-1], e.Name, "slices of one id must nest")
			open[e.ID.Local] = inside[:len(inside)-1]
		default:
			require.Fail(t, "a phase that overlapping slices and counters do not need", e.Phase)
		}
	}
	for _, left := range open {
		assert.Empty(t, left, "every slice ends")
	}
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
	r := tr.Dump()
	got := events(t, r)

	assert.Equal(t, []string{"begin", "mark 1", "mark 2", "mark 3", "out of memory", "mark 4"}, names(got, "i"))
	oom := got[slices.IndexFunc(got, func(e event) bool { return e.Name == "out of memory" && e.Phase == "i" })]
	assert.Regexp(t, `"stack":\["[^"]*exporttest.Train [^"]*program.go:\d+",`, string(oom.Args))
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
	allocated := values(t, events(t, tr.Dump()), "allocated")
	assert.Equal(t, int64(2*7168), allocated[0], "the weights, in blocks of 512 bytes")
}

func TestDevicesAreProcesses(t *testing.T) {
	r := exporttest.New(t, tracker.Config{}).Dump()
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	other := tr.Dump()
	other.Snapshot.Ordinal = 1
	r.Others = []*snapshot.Dump{other}
	names := make(map[int]string)
	for _, e := range events(t, r) {
		if e.Name == "process_name" {
			names[*e.PID] = string(e.Args)
		}
	}
	assert.Equal(t, map[int]string{1: `{"name":"Simulated GPU [0]"}`, 1001: `{"name":"Simulated GPU [1]"}`}, names)
}

// TestEachDeviceHasItsOwnTracks: counters, sections and marks are of their device's process.
func TestEachDeviceHasItsOwnTracks(t *testing.T) {
	var all []*snapshot.Dump
	for ordinal, mib := range []alloc.Bytes{3, 5, 7} {
		tr := exporttest.New(t, tracker.Config{})
		section := tr.Section(fmt.Sprintf("load %d", ordinal))
		_, err := tr.AllocBytes(mib*alloc.MiB, tracker.Parameter)
		require.NoError(t, err)
		section.End()
		tr.Track()
		all = append(all, tr.Dump())
		all[ordinal].Snapshot.Ordinal = ordinal
	}
	all[0].Others = all[1:]
	tracks := make(map[int]map[string]int) // by process
	levels := make(map[int]float64)
	for _, e := range events(t, all[0]) {
		if tracks[*e.PID] == nil {
			tracks[*e.PID] = make(map[string]int)
		}
		if e.Phase == "M" {
			continue
		}
		tracks[*e.PID][e.Phase+" "+e.Name]++
		if e.Name == "allocated" {
			var args struct{ Bytes float64 }
			require.NoError(t, json.Unmarshal(e.Args, &args))
			levels[*e.PID] = args.Bytes
		}
	}
	require.Len(t, tracks, 3)
	for i, r := range all {
		pid := 1 + 1000*i
		assert.Equal(t, float64(r.Snapshot.Allocated), levels[pid])
		for j := range all {
			n := tracks[pid][fmt.Sprintf("b load %d", j)]
			assert.Equal(t, i == j, n == 1, "section of device %d in the process of %d", j, i)
		}
		assert.Equal(t, 1, tracks[pid]["i mark 1"])
		assert.Positive(t, tracks[pid]["C reserved"])
	}
}

func TestRanksAreProcesses(t *testing.T) {
	r := exporttest.New(t, tracker.Config{}).Dump()
	r.Snapshot.Origin = snapshot.Origin{Rank: new(3), WorldSize: 8, Host: "node-1"}
	got := events(t, r)
	assert.Equal(t, 4, *got[0].PID)
	assert.JSONEq(t, `{"name": "rank 3, Simulated GPU [0]"}`, string(got[0].Args))
	first := slices.IndexFunc(got, func(e event) bool { return e.Phase == "i" })
	assert.JSONEq(t, `{"device": "Simulated GPU [0]", "process": "rank 3 of 8 on node-1", "time": "2026-11-21T03:30:04.002Z"}`, string(got[first].Args))
	r.History = snapshot.History{}
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
	r := tr.Dump()
	r.Snapshot.Origin = snapshot.Origin{}
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

func TestADumpWithoutASnapshotIsAnError(t *testing.T) {
	assert.ErrorIs(t, trace.Write(new(bytes.Buffer), &snapshot.Dump{}), walk.ErrNoSnapshot)
}
