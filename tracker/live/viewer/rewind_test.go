package viewer_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/recordings"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// TestMomentsAgreeWithRewind: at some moments of PyTorch's recordings, what is live and reserved is what rewind finds.
func TestMomentsAgreeWithRewind(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(recordings.Dir(t), "*.pickle*"))
	require.NoError(t, err)
	compared := 0
	for _, path := range paths {
		f, err := files.ReadFile(path)
		require.NoError(t, err)
		v, url := serving(t, viewer.Source{Name: path, Read: func(context.Context, *viewer.Progress) (*files.File, error) { return f, nil }})
		about := getJSON(t, v, url+"/api/track?track=0.0")
		last, first := uint64(about["moments"].(float64))-1, uint64(about["first"].(float64))
		for part := range uint64(5) {
			moment := last * part / 5
			want, err := rewind.At(f.Dump, first+moment)
			if err != nil {
				continue // no events
			}
			name := fmt.Sprintf("%s at %d", filepath.Base(path), moment)
			table := getJSON(t, v, fmt.Sprintf("%s/api/table?track=0.0&moment=%d&limit=1", url, moment))["total"].(map[string]any)
			assert.EqualValues(t, want.Live.Bytes, table["live_bytes"], name)
			assert.EqualValues(t, want.Live.Count, table["live_count"], name)
			m := getJSON(t, v, fmt.Sprintf("%s/api/segments?track=0.0&moment=%d", url, moment))
			if len(want.Segments) == 0 {
				continue // the events do not agree with the snapshot's segments
			}
			assert.EqualValues(t, want.Reserved, m["reserved_bytes"], name)
			assert.Len(t, m["segments"], min(1000, len(want.Segments)), name)
			compared++
		}
	}
	assert.Greater(t, compared, 20)
}
