// Package schema_test holds the JSON of package tracker against the schemas of docs.
package schema_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// schema returns a schema of the docs.
func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("..", "..", "..", "docs", name+".schema.json"))
	require.NoError(t, err)
	return s
}

func parse(t *testing.T, text []byte) map[string]any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return value.(map[string]any)
}

// busy returns a tracker that has something in every part of its JSON forms.
func busy(t *testing.T, cfg tracker.Config) *tracker.MemTracker {
	tr := exporttest.New(t, cfg)
	exporttest.Train(t, tr)
	section := tr.Section("step")
	b, err := tr.Alloc(nil, alloc.BFloat16, tracker.Gradient)
	require.NoError(t, err)
	b.SetLabel("loss")
	section.End()
	for i := range 3000 { // more shapes than the ledger keeps
		b, err := tr.AllocBytes(alloc.Bytes(i+1), tracker.Temporary)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		tr.Track()
	}
	return tr
}

func TestSnapshotsMatchTheirSchema(t *testing.T) {
	for name, cfg := range map[string]tracker.Config{
		"with a cache": {},
		"without":      {NoCache: true},
		"of a rank":    {Origin: snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}},
	} {
		tr := busy(t, cfg)
		for kind, s := range map[string]*snapshot.Snapshot{"whole": tr.Snapshot(), "light": tr.LightSnapshot()} {
			t.Run(name+" "+kind, func(t *testing.T) {
				text, err := s.MarshalJSON()
				require.NoError(t, err)
				assert.NoError(t, schema(t, "snapshot").Validate(parse(t, text)))
			})
		}
	}
}

func TestStreamsMatchTheirSchema(t *testing.T) {
	tr, _ := exporttest.Streams(t, tracker.Config{})
	tr.Track()
	var b bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&b))
	dump := parse(t, b.Bytes())
	assert.NotEmpty(t, dump["snapshot"].(map[string]any)["pending_bytes"])
	assert.Len(t, dump["snapshot"].(map[string]any)["streams"], 2)
	assert.NoError(t, schema(t, "dump").Validate(dump))
}

func TestDumpsMatchTheirSchema(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, busy(t, tracker.Config{}).Dump().WriteJSON(&b))
	dump := parse(t, b.Bytes())
	assert.NotEmpty(t, dump["marks"])
	assert.NotEmpty(t, dump["snapshot"].(map[string]any)["retired"])
	assert.NoError(t, schema(t, "dump").Validate(dump))
}

// TestSmallDumpsMatchTheirSchema: whatever is left out of them.
func TestSmallDumpsMatchTheirSchema(t *testing.T) {
	dir, seen := t.TempDir(), make(map[string]bool)
	for _, limit := range []alloc.Bytes{512 * alloc.KiB, 64 * alloc.KiB, 16 * alloc.KiB, 8 * alloc.KiB} {
		path, err := busy(t, tracker.Config{MaxDumpBytes: limit}).DumpFile(dir, "a test")
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		dump := parse(t, text)
		assert.NoError(t, schema(t, "dump").Validate(dump))
		for key := range dump["left_out"].(map[string]any) {
			seen[key] = true
		}
	}
	assert.Len(t, seen, 7, "%v", seen)
}

// TestSchemasKnowEveryWord compares the schemas' words with the code's.
func TestSchemasKnowEveryWord(t *testing.T) {
	var actions, kinds []any
	for a := mem.Allocated; !strings.HasPrefix(a.String(), "Action("); a++ {
		actions = append(actions, a.String())
	}
	for _, kind := range mem.Kinds() {
		kinds = append(kinds, kind.String())
	}
	assert.ElementsMatch(t, actions, words(t, "enum", "dump", "properties", "history", "properties", "events", "items", "properties", "action"))
	assert.ElementsMatch(t, kinds, words(t, "examples", "snapshot", "$defs", "kind"))
}

// words returns a list of words that stands in a schema at a place.
func words(t *testing.T, list, name string, place ...string) []any {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name+".schema.json"))
	require.NoError(t, err)
	at := parse(t, text)
	for _, key := range place {
		at = at[key].(map[string]any)
	}
	return at[list].([]any)
}

func TestSchemasRefuseWhatTheyDoNotKnow(t *testing.T) {
	text, err := busy(t, tracker.Config{}).LightSnapshot().MarshalJSON()
	require.NoError(t, err)
	for key, value := range map[string]any{"version": 5, "unheard_of": 1, "allocations": nil, "time": "yesterday"} {
		s := parse(t, text)
		s[key] = value
		assert.Error(t, schema(t, "snapshot").Validate(s), key)
	}
}
