package torch

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// TestBlocksThatDoNotTile: what is live and what happened is read all the same.
func TestBlocksThatDoNotTile(t *testing.T) {
	c, err := read(strings.NewReader(`{"segments": [
		{"device": 0, "address": 1048576, "total_size": 4096, "stream": 0, "blocks": [{"address": 1048576, "size": 512, "state": "active_allocated"}]},
		{"device": 0, "address": 9048576, "total_size": 512, "stream": 0, "blocks": [{"size": 512, "state": "active_allocated"}]}],
		"device_traces": [[{"action": "alloc", "addr": 1048576, "size": 500, "stream": 0}]]}`))
	require.NoError(t, err)
	s := c.Dump.Snapshot
	assert.Equal(t, int64(2), s.Live.Count)
	assert.Equal(t, 1, len(tables.OfHistory(&c.Dump.History).Events))
	assert.Len(t, s.Segments, 1)
	assert.Equal(t, alloc.Bytes(4608), s.Reserved)
	assert.Equal(t, []string{"1 segment with blocks that do not tile it"}, c.Dump.LeftOut())
}

// TestUserMetadataIsALabel reads what a program noted with its allocations.
func TestUserMetadataIsALabel(t *testing.T) {
	for name, c := range map[string]struct{ metadata, want string }{
		"text":                        {`"encoder weights"`, "encoder weights"},
		"a dict":                      {`{"step": 3, "phase": "forward", "loss": 0.5, "last": true}`, "step=3, phase=forward, loss=0.5, last=true"},
		"empty":                       {`""`, ""},
		"none":                        {`null`, ""},
		"a list":                      {`[1, 2]`, ""},
		"many keys":                   {`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}`, "a=1, b=1, c=1, d=1, e=1, f=1, g=1, h=1"},
		"long":                        {`"` + strings.Repeat("x", 1000) + `"`, strings.Repeat("x", maxLabel)},
		"a function of torch.compile": {`"x", "compile_context": "1/0"`, "x, compile_context=1/0"},
		"nothing but a function":      {`null, "compile_context": "1/0"`, "compile_context=1/0"},
		"no function":                 {`null, "compile_context": "N/A"`, ""},
		"cut in a rune":               {`"x` + strings.Repeat("é", 1000) + `"`, "x" + strings.Repeat("é", maxLabel/2-1)},
	} {
		t.Run(name, func(t *testing.T) {
			// The first buffer at the address has another label, and is gone.
			c1, err := read(strings.NewReader(`{"segments": [{"device": 0, "address": 1048576, "total_size": 1024, "stream": 0, "segment_type": "small",
				"blocks": [{"size": 512, "state": "active_allocated"}, {"size": 512, "state": "active_allocated"}]}],
				"device_traces": [[
					{"action": "alloc", "addr": 1048576, "size": 512, "stream": 0, "user_metadata": "gone"},
					{"action": "free_completed", "addr": 1048576, "size": 512, "stream": 0},
					{"action": "alloc", "addr": 1048576, "size": 512, "stream": 0, "user_metadata": ` + c.metadata + `}]]}`))
			require.NoError(t, err)
			var labels []string
			for a := range c1.Dump.Snapshot.Allocations() {
				labels = append(labels, a.Label)
			}
			assert.ElementsMatch(t, []string{c.want, ""}, labels)
		})
	}
}

// TestLabelsAreWritten where the viewer shows them, and nothing that PyTorch did not know.
func TestLabelsAreWritten(t *testing.T) {
	c, err := read(strings.NewReader(`{"segments": [{"device": 0, "address": 1048576, "total_size": 1024, "stream": 0, "segment_type": "small",
		"blocks": [{"size": 512, "state": "active_allocated"}, {"size": 512, "state": "inactive"}]}],
		"device_traces": [[{"action": "alloc", "addr": 1048576, "size": 512, "stream": 0, "time_us": 1},
			{"action": "annotate", "addr": 1048576, "size": 0, "stream": 0, "time_us": 2, "user_metadata": "saved by autograd"}]]}`))
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, Write(&b, c.Dump))
	assert.NotContains(t, b.String(), "DType(0)")
	_, event, ok := strings.Cut(b.String(), "user_metadata")
	require.True(t, ok)
	assert.Contains(t, event, "saved by autograd")
	again, err := read(&b)
	require.NoError(t, err)
	for a := range again.Dump.Snapshot.Allocations() {
		assert.Equal(t, "saved by autograd", a.Label)
		assert.Zero(t, a.DType)
	}
}
