package tracker_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestOwnKinds(t *testing.T) {
	const cache tracker.Kind = "KVCache"
	tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Memory: alloc.GiB}), Report: io.Discard})
	for _, kind := range []tracker.Kind{cache, tracker.Parameter, tracker.Unspecified, "Adapter"} {
		_, err := tr.Alloc(alloc.Shape{2}, alloc.Float32, kind)
		require.NoError(t, err)
	}
	var names []string
	for _, g := range tr.Snapshot().Sub(nil) {
		names = append(names, g.Kind.String())
	}
	assert.Equal(t, []string{"Tensor", "Parameter", "Adapter", "KVCache"}, names, "the well-known kinds come first")

	text, err := tr.Snapshot().MarshalJSON()
	require.NoError(t, err)
	read, err := snapshot.Read(strings.NewReader(string(text)))
	require.NoError(t, err)
	assert.Empty(t, read.Sub(tr.Snapshot()), "read as written")
}

func TestWhatIsNoKind(t *testing.T) {
	for kind, want := range map[tracker.Kind]string{
		"Tensor":                                 "write tracker.Unspecified",
		"a\x1b[31m":                              "want printable UTF-8",
		"\xff":                                   "want printable UTF-8",
		tracker.Kind(strings.Repeat("long", 17)): "it has 68 bytes, want at most 64",
	} {
		tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Memory: alloc.GiB}), Report: io.Discard})
		_, err := tr.Alloc(alloc.Shape{2}, alloc.Float32, kind)
		require.ErrorContains(t, err, want)
		assert.Zero(t, tr.Snapshot().Live, "a refused request costs nothing")
	}
	_, err := mem.ParseKind("")
	require.Error(t, err)
	kind, err := mem.ParseKind("Tensor")
	require.NoError(t, err)
	assert.Equal(t, tracker.Unspecified, kind)
}
