package torch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// endless is a reader that must not be read to its end.
type endless struct{}

var errTooFar = errors.New("read too far")

func (endless) Read([]byte) (int, error) { return 0, errTooFar }

// TestReadLive: from the segments alone, which stand first, ReadLive tells the same of the end as Read of the whole file, but for
// the kinds.
func TestReadLive(t *testing.T) {
	byLine := func(u *export.Usage) []export.Line {
		lines, _ := export.Compare(nil, []*export.Usage{u}, "line", "live")
		return lines
	}
	files := map[string][]byte{"own": write(t, trained(t, tracker.Config{}))}
	for _, name := range recorded {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		files[name] = text
	}
	early := 0
	for name, text := range files {
		whole, err := read(bytes.NewReader(text))
		require.NoError(t, err, name)
		d, u, ok, err := ReadLive(bytes.NewReader(text))
		require.NoError(t, err, name)
		at := bytes.Index(text, []byte("device_traces"))
		if segments := bytes.Index(text, []byte("segments")); !ok {
			assert.True(t, text[0] == '{' || text[0] == '(' || at < segments, "%s", name)
			continue
		}
		early++
		assert.Equal(t, byLine(whole.Usage), byLine(u), name)
		assert.Equal(t, whole.Dump.Snapshot.Live, d.Snapshot.Live, name)
		assert.Equal(t, whole.Dump.Snapshot.Reserved, d.Snapshot.Reserved, name)

		_, _, ok, err = ReadLive(io.MultiReader(bytes.NewReader(text[:at+len("device_traces")+16]), endless{}))
		assert.True(t, ok && err == nil, "%s: it needs no more: %v", name, err)
		_, _, _, err = ReadLive(bytes.NewReader(text[:at/2]))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF, name)
	}
	assert.Greater(t, early, 3)
}
