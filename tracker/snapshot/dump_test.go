package snapshot_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// written returns the dump's JSON form, which must read as the same again.
func written(t *testing.T, r *snapshot.Dump) string {
	t.Helper()
	var first, second bytes.Buffer
	require.NoError(t, r.WriteJSON(&first))
	read, err := snapshot.ReadDump(bytes.NewReader(first.Bytes()))
	require.NoError(t, err)
	require.NoError(t, read.WriteJSON(&second))
	require.Equal(t, first.String(), second.String())
	return first.String()
}

// TestMarshalDump: encoding/json writes a dump as WriteJSON does.
func TestMarshalDump(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	want := tr.Dump()
	text, err := json.Marshal(want)
	require.NoError(t, err)
	got := new(snapshot.Dump)
	require.NoError(t, json.Unmarshal(text, got))
	assert.Equal(t, want.Snapshot.String(), got.Snapshot.String())
	assert.Equal(t, slices.Collect(want.Events()), slices.Collect(got.Events()))

	_, err = json.Marshal(&snapshot.Dump{Reason: "no snapshot"})
	assert.ErrorContains(t, err, "it has no snapshot")
}

func TestDumpsReadAsWritten(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	tr.Do("alone", func() {})
	r := tr.Dump()
	written(t, r)

	require.NoError(t, r.Profile.SetEstimates(map[string]sections.Estimate{"alone": {Of: "retained", Bytes: alloc.KiB}}))
	r.OOM = &snapshot.OOM{
		Requested: alloc.GiB, Group: snapshot.Group{Kind: "Activation", DType: alloc.Float32, Shape: alloc.Shape{1 << 28}},
		Free: -1, Others: -1, CallSites: []mem.CallSiteTally{{Frame: mem.Frame{Function: "main.main", File: "main.go", Line: 3}, Tally: mem.Tally{Count: 1, Bytes: 9}}},
		Advice: "truly full",
	}
	other := tr.Dump()
	other.History, other.Profile = snapshot.History{}, nil
	r.Others = []*snapshot.Dump{other, other}
	text := written(t, r)
	for _, part := range []string{`"oom":{"requested_bytes":1073741824`, `"others": [`, `"profile": {`, `"of":"retained"`} {
		assert.Contains(t, text, part)
	}
}

func TestNilRecordsInAFileAreErrors(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, exporttest.New(t, tracker.Config{}).Dump().WriteJSON(&text))
	for _, member := range []string{`"others":[null]`, `"marks":[null]`, `"profile":{"schema":"gpumemtrack.profile","version":9}`} {
		torn := bytes.Replace(text.Bytes(), []byte("{"), []byte("{"+member+","), 1)
		_, err := snapshot.ReadDump(bytes.NewReader(bytes.ReplaceAll(torn, []byte(",\n\"marks\": [\n]"), nil)))
		assert.Error(t, err, member)
	}
}
