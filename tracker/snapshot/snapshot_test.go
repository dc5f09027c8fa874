package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestBrokenJSONIsRefused(t *testing.T) {
	head := `"schema":"gpumemtrack.snapshot","version":2,"device":"a"`
	for text, want := range map[string]string{
		`[]`: "the JSON is an array, want an object", `{"schema"}`: "invalid character '}' after object name (expecting ':') within \"/schema\"",
		`{` + head + `;`: `invalid character ';' after object value (expecting ',' or '}')`,
		`{` + head + `,"allocations":[{"seq":01}]}`: "invalid character '1' after object value (expecting ',' or '}') within \"/allocations/0\"",
		`{` + head + `,"allocations":[{}x]}`:        "invalid character 'x' after array element (expecting ',' or ']') within \"/allocations\"",
		`{` + head + `,"sites":[nul]}`:              "read snapshot: invalid character ']' in literal null (expecting 'l') within \"/sites/0\"",
		`null `:                                     "it is null", `{` + head + `,"sites":{}}`: `"/sites" is an object, want an array`,
		`{` + head + `,}`: "invalid character ',' at start of value", `{` + head + `,"stacks":[[1,]]}`: "invalid character ']' at start of value within \"/stacks/0/1\"",
		`{` + head + `,"segments":[{"address":1,"bytes":2,"pool":"small","blocks":[]}]}`: "its blocks end at",
	} {
		_, err := snapshot.Read(strings.NewReader(text))
		assert.ErrorContains(t, err, want, text)
	}
}

// TestManyEmptyEntriesCostLittle: entries of two bytes that become hundreds.
func TestManyEmptyEntriesCostLittle(t *testing.T) {
	for _, member := range []string{"sites", "retired", "allocations", "stacks", "frames", "lifetimes", "growing", "segments"} {
		element := "{},"
		if member == "stacks" {
			element = "[],"
		}
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		_, err := io.WriteString(zip, `{"schema":"gpumemtrack.snapshot","version":2,"`+member+`":[`+strings.Repeat(element, 16<<20/len(element)))
		require.NoError(t, err)
		require.NoError(t, zip.Close())

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = snapshot.Read(&packed)
		runtime.ReadMemStats(&after)
		if member == "segments" {
			assert.ErrorContains(t, err, "want more than 0")
		} else {
			assert.Error(t, err, member)
		}
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30), member)
	}
	_, err := snapshot.Read(strings.NewReader(`{"sites":[` + strings.Repeat("{},", 1<<20)))
	assert.ErrorIs(t, err, bounded.ErrTooLarge)
}
