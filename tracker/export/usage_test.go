package export_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

func TestFromSnapshotAddsUp(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for name, s := range map[string]*tracker.Snapshot{"whole": tr.Snapshot(), "light": tr.LightSnapshot()} {
		t.Run(name, func(t *testing.T) {
			var live, peak, total tracker.Tally
			for _, r := range export.FromSnapshot(s).Rows {
				live, peak, total = live.Add(r.Live), peak.Add(r.Peak), total.Add(r.Total)
			}
			assert.Equal(t, s.Live, live)
			assert.Equal(t, s.Peak, peak)
			assert.Equal(t, s.Total, total)
		})
	}
}

func TestHereReadsTheEnvironment(t *testing.T) {
	t.Setenv("RANK", "3")
	t.Setenv("WORLD_SIZE", "8")
	here := export.Here()
	assert.Equal(t, "3", here.Rank)
	assert.Equal(t, "rank 3 of 8", export.Origin{Rank: here.Rank, WorldSize: here.WorldSize}.String())
	t.Setenv("RANK", "none of this")
	assert.Empty(t, export.Here().Rank)
	assert.Equal(t, "rank 1 on a", export.Origin{Rank: "1", Host: "a"}.String())
	assert.Equal(t, "a", export.Origin{Host: "a"}.String())
}

// TestTrackerAloneIsLight holds the promise of the package comment.
func TestTrackerAloneIsLight(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("go list needs the go command in PATH")
	}
	out, err := exec.Command(tool, "list", "-deps", "github.com/gpumemtrack/gpumemtrack/tracker").Output()
	require.NoError(t, err)
	for path := range strings.FieldsSeq(string(out)) {
		for _, heavy := range []string{"google/pprof", "prometheus", "/template", "net/http", "tracker/export", "tracker/live"} {
			assert.NotContains(t, path, heavy)
		}
	}
}
