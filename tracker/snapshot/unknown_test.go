package snapshot_test

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

var unknown = regexp.MustCompile(`(_bytes"|_ns"):null`)

// TestUnknownIsNull in the JSON of every type with amounts that may be unknown, and reads back as it was. Earlier versions
// wrote -1.
func TestUnknownIsNull(t *testing.T) {
	rss := alloc.Bytes(-1)
	for _, test := range []struct {
		of, read any
		nulls    int
	}{
		{&snapshot.Levels{DriverUsed: -1, DriverTotal: -1}, new(snapshot.Levels), 2},
		{&snapshot.Levels{DriverUsed: 5, DriverTotal: 7}, new(snapshot.Levels), 0},
		{&snapshot.Mark{Seq: 3, Levels: snapshot.Levels{Reserved: 9, DriverUsed: -1, DriverTotal: 7}}, new(snapshot.Mark), 1},
		{&snapshot.OOM{Free: -1, Total: -1, Reserved: -1, Inactive: -1, LargestInactive: -1, Untracked: -1, Elsewhere: -1, Others: -1}, new(snapshot.OOM), 8},
		{&sections.MemoryUse{Before: -1, Used: 4, Peak: -1, PeakAtMost: true}, new(sections.MemoryUse), 2},
		{&sections.Data{Measured: sections.Measured{Path: "a", Time: 5, DeviceTime: -1, CPUTime: -1}, RSS: sections.MemoryUse{Before: -1, Used: -1, Peak: -1}}, new(sections.Data), 5},
		{&sections.Row{Measured: sections.Measured{Path: "a", DeviceTime: -1, CPUTime: -1}}, new(sections.Row), 4},
		{&sections.Row{Measured: sections.Measured{Path: "a", CPUTime: time.Second}, RSS: &rss}, new(sections.Row), 1},
	} {
		text, err := json.Marshal(test.of)
		require.NoError(t, err)
		assert.Len(t, unknown.FindAll(text, -1), test.nulls, "%T: %s", test.of, text)
		require.NoError(t, json.Unmarshal(text, test.read))
		assert.Equal(t, test.of, test.read, "%s", text)
		if _, is := test.of.(*sections.Row); !is {
			require.NoError(t, json.Unmarshal(unknown.ReplaceAll(text, []byte("$1:-1")), test.read), "an earlier version")
			assert.Equal(t, test.of, test.read)
		}
	}
}
