package export_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestFromSnapshotAddsUp(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for name, s := range map[string]*snapshot.Snapshot{"whole": tr.Snapshot(), "light": tr.LightSnapshot()} {
		t.Run(name, func(t *testing.T) {
			var live, peak, total mem.Tally
			for _, r := range export.FromSnapshot(s).Rows {
				live, peak, total = live.Add(r.Live), peak.Add(r.Peak), total.Add(r.Total)
			}
			assert.Equal(t, s.Live, live)
			assert.Equal(t, s.Peak, peak)
			assert.Equal(t, s.Total, total)
		})
	}
}

func TestTheOriginIsTheTrackers(t *testing.T) {
	origin := snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}
	r := exporttest.New(t, tracker.Config{Origin: origin}).Dump()
	assert.Equal(t, origin, r.Snapshot.Origin)
	assert.Equal(t, origin, export.FromSnapshot(r.Snapshot).Origin)
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
