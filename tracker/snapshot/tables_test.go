package snapshot_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// foreign is what a source knows that has streams, but no types.
func foreign(t *testing.T) *snapshot.Dump {
	var stacks tables.StackTable
	site := mem.Frame{Function: "train", File: "train.py", Line: 7}
	stack := stacks.Add(mem.Stack{{Function: "unwind"}, site}, site)
	freedAt := stacks.Add(mem.Stack{{Function: "collect", File: "train.py", Line: 9}}, mem.Frame{})
	begun := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	streams := []alloc.Stream{0, 0x7f00_0000_1000}
	x, err := tables.Untyped("autograd_detail", 1000)
	require.NoError(t, err)
	segment := alloc.Segment{Ptr: 512, Size: 2048, Pool: "small", Stream: streams[1], Expandable: true, Blocks: []alloc.Block{
		{Ptr: 512, Size: 1024, Requested: 1000, State: alloc.Allocated}, {Ptr: 1536, Size: 1024, State: alloc.Pending},
	}}
	require.NoError(t, segment.Check())
	held := mem.Tally{Count: 1, Bytes: 1000}
	s := &snapshot.Snapshot{
		Time: begun, Device: "GPU", Levels: snapshot.Levels{Live: held, Allocated: 1024, Reserved: 2048, DriverUsed: -1, DriverTotal: -1},
		Peak: held, Total: held, Events: 2, Segments: []alloc.Segment{segment}, Settings: map[string]string{"expandable_segments": "True"},
	}
	sections := []string{"", "forward"}
	place := tables.Place{Stack: stack, Section: 1}
	*tables.Of(&s.Tables) = tables.Tables{
		Stacks: &stacks, Sections: sections, Streams: streams, Epoch: begun,
		Sites:       []tables.SiteEntry{{Place: place, Tensor: &x, Live: 1, Peak: 1, Total: 1, Stream: 1}},
		Allocations: []tables.AllocationEntry{{Site: 0, Ptr: 512, Allocated: 1024}},
	}
	return &snapshot.Dump{Snapshot: s, History: tables.WrapHistory(tables.HistoryTables{
		Start: begun, Stacks: &stacks, Sections: sections, Streams: streams, Frees: []tables.FreeEntry{{Seq: 1, Stack: freedAt}},
		Events: []tables.EventEntry{
			{Ptr: 512, Allocated: 1024, Tensor: &x, Stack: stack, Section: 1, Action: mem.Allocated, Stream: 1},
			{Since: 5, Ptr: 1536, Allocated: 1024, Tensor: &x, Stack: stack, Action: mem.FreeRequested, Stream: 1},
		},
	})}
}

// TestForeignSources: what a source knows of streams comes through, and what it does not
// know stays unknown.
func TestForeignSources(t *testing.T) {
	read, err := snapshot.ReadDump(bytes.NewReader([]byte(written(t, foreign(t)))))
	require.NoError(t, err)
	for a := range read.Snapshot.Allocations() {
		assert.Equal(t, alloc.Stream(0x7f00_0000_1000), a.Stream)
		assert.Equal(t, alloc.Bytes(1000), a.Requested)
		assert.Zero(t, a.DType.Bits())
		assert.Equal(t, "train.py:7 train", a.CallSite.String())
		assert.Equal(t, "forward", a.Section)
	}
	events := slices.Collect(read.Events())
	assert.Equal(t, []mem.Action{mem.Allocated, mem.FreeRequested}, []mem.Action{events[0].Action, events[1].Action})
	assert.Equal(t, alloc.Stream(0x7f00_0000_1000), events[1].Stream)
	assert.Nil(t, events[0].FreedAt)
	assert.Equal(t, "train.py:9 collect", events[1].FreedAt[0].String())
	assert.Equal(t, "train.py:7 train", events[1].Stack[1].String())
	assert.Equal(t, foreign(t).Snapshot.Segments, read.Snapshot.Segments)
	assert.Equal(t, "True", read.Snapshot.Settings["expandable_segments"])
	assert.Contains(t, read.Snapshot.String(), "+ | 1 * unknown  | 1000 B     | autograd_detail | unknown | train.py:7 train")
}

func TestWildFreesInAFileAreErrors(t *testing.T) {
	text := written(t, foreign(t))
	const frees = `"frees": [
{"seq":1,"stack":1}
]`
	require.Equal(t, 1, strings.Count(text, frees), text)
	for _, wild := range []string{
		`[{"seq":1,"stack":2}]`, `[{"seq":1,"stack":-1}]`, `[{"seq":1,"stack":1},{"seq":1,"stack":1}]`, `[{"seq":1,"stack":1},{"seq":0,"stack":1}]`,
	} {
		_, err := snapshot.ReadDump(strings.NewReader(strings.Replace(text, frees, `"frees":`+wild, 1)))
		assert.ErrorContains(t, err, "read history: free ", wild)
	}
}

// TestLeaksAreInTheFile: what a tracker suspects, a reader of its dump does too.
func TestLeaksAreInTheFile(t *testing.T) {
	tr := exporttest.Leaky(t)
	require.NotEmpty(t, tr.Suspects())
	r := tr.Dump()
	read, err := snapshot.ReadDump(bytes.NewReader([]byte(written(t, r))))
	require.NoError(t, err)
	texts := func(s *snapshot.Snapshot) (all []string) {
		for _, suspect := range leaks.Suspects(s) {
			all = append(all, suspect.String())
		}
		for _, growth := range leaks.Growing(s) {
			all = append(all, growth.String())
		}
		return all
	}
	assert.Equal(t, texts(r.Snapshot), texts(read.Snapshot))
	assert.NotEmpty(t, texts(r.Snapshot))
}

func TestWildLeaksInAFileAreErrors(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, exporttest.New(t, tracker.Config{}).Snapshot().WriteJSON(&text))
	site := `"site":{"function":"f","file":"f.go","line":1}`
	for _, member := range []string{
		`"lifetimes":[{` + site + `,"ages":[1],"last":0}]`,
		`"lifetimes":[{` + site + `,"ages":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"last":1}]`,
		`"lifetimes":[{` + site + `,"ages":[1],"last":1,"window_ns":1000000000,"old":[[1]]}]`,
		`"lifetimes":[{` + site + `,"ages":[1],"last":1,"window_ns":1073741824,"old":[[1,1]]}]`,
		`"lifetimes":[{` + site + `,"ages":[1],"last":1,"old":[[1]]}]`,
		`"paths":[{"stack":0,"ages":[1],"last":0}]`,
		`"paths":[{"stack":-2,"ages":[1],"last":1}]`,
		`"paths":[{"stack":99999,"ages":[1],"last":1}]`,
	} {
		_, err := snapshot.Read(bytes.NewReader(bytes.Replace(text.Bytes(), []byte("{"), []byte("{"+member+","), 1)))
		assert.Error(t, err, member)
	}
}

// TestLeaksInAnOldFile: version 2 had what grew from mark to mark. It is read, and nobody is named by it.
func TestLeaksInAnOldFile(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, exporttest.Leaky(t).LightSnapshot().WriteJSON(&text))
	site := `"site":{"function":"f","file":"f.go","line":1}`
	old := `{"warm":"2026-11-21T03:30:04Z","lifetimes":[{` + site + `,"ages":[1,2,3],"last":7}],` +
		`"growing":[{` + site + `,"level":{"count":1,"bytes":1},"marks":32,"width":1,"low":[]}],`
	file := strings.Replace(strings.Replace(text.String(), "{", old, 1), `"version":4`, `"version":2`, 1)
	s, err := snapshot.Read(strings.NewReader(file))
	require.NoError(t, err)
	assert.Equal(t, int64(45), s.Live.Count)
	assert.Empty(t, leaks.Suspects(s))
	assert.Empty(t, leaks.Growing(s))
}
