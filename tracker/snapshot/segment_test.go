package snapshot_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestSegmentJSON(t *testing.T) {
	want := []alloc.Segment{
		{Ptr: 512, Size: 1536, Pool: "small", Blocks: []alloc.Block{
			{Ptr: 512, Size: 512, Requested: 100, State: alloc.Allocated}, {Ptr: 1024, Size: 512, State: alloc.Inactive},
			{Ptr: 1536, Size: 512, Requested: 512, State: alloc.Pending},
		}},
		{Ptr: 4096, Size: 512, Pool: "large", Stream: 3, Expandable: true, Private: "(0, 1)", Blocks: []alloc.Block{
			{Ptr: 4096, Size: 512, Requested: 1, State: alloc.Allocated},
		}},
	}
	var text bytes.Buffer
	require.NoError(t, (&snapshot.Snapshot{Segments: want, Tables: tables.Wrap(tables.Tables{Sections: []string{""}})}).WriteJSON(&text))
	got, err := snapshot.Read(&text)
	require.NoError(t, err)
	assert.Equal(t, want, got.Segments)
	for name, segment := range map[string]string{
		"a hole":       `{"address":512,"bytes":1024,"pool":"small","blocks":[{"address":1024,"bytes":512,"state":"inactive"}]}`,
		"too short":    `{"address":512,"bytes":1024,"pool":"small","blocks":[{"address":512,"bytes":512,"state":"inactive"}]}`,
		"no pool":      `{"address":512,"bytes":512,"blocks":[{"address":512,"bytes":512,"state":"inactive"}]}`,
		"another pool": `{"address":512,"bytes":512,"pool":"medium","blocks":[{"address":512,"bytes":512,"state":"inactive"}]}`,
		"no state":     `{"address":512,"bytes":512,"pool":"small","blocks":[{"address":512,"bytes":512,"state":"gone"}]}`,
		"no such size": `{"address":512,"bytes":0,"pool":"small","blocks":[{"address":512,"bytes":-512,"state":"inactive"}]}`,
		"negative":     `{"address":512,"bytes":-512,"pool":"small","blocks":[]}`,
		"past 2^64":    `{"address":18446744073709551104,"bytes":1024,"pool":"small","blocks":[{"address":18446744073709551104,"bytes":512,"state":"inactive"},{"address":0,"bytes":512,"state":"inactive"}]}`,
	} {
		_, err := snapshot.Read(strings.NewReader(`{"schema":"gpumemtrack.snapshot","version":2,"segments":[` + segment + `]}`))
		assert.Error(t, err, name)
	}
	_, err = snapshot.Read(strings.NewReader(`{"schema":"gpumemtrack.snapshot","version":2,"segments":[{"address":512,"bytes":512,"pool":"small","blocks":[{"address":512,"bytes":512,"state":"inactive"}]}]}`))
	assert.NoError(t, err, "what the others break is whole here")
}
