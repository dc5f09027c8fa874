package tracker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// estimates are expectations by path.
// untimed hides what a device can do beside memory.
type untimed struct{ alloc.Device }

// profiled runs two steps of two layers, with a clock that passes a second at each look.
func profiled(t *testing.T) sections.Profile {
	tr, _ := open(t, tracker.Config{
		Clock: clock(), Sections: tracker.SectionConfig{Host: "none"}, NoCache: true,
		Device: untimed{device(t, sim.Config{})},
	})
	for range 2 {
		tr.Do("step/forward", func() {
			conv := tr.Section("conv1")
			take(t, tr, tracker.Activation, 1<<18)
			// What the next line takes is not kept.
			require.NoError(t, take(t, tr, tracker.Temporary, 1<<19).Free())
			conv.End()
			tr.Do("relu", func() { take(t, tr, tracker.Activation, 1<<16) })
		})
	}
	return tr.Profile()
}

func TestProfile(t *testing.T) {
	p := profiled(t)
	require.NoError(t, p.SetEstimates(map[string]sections.Estimate{
		"step/forward/conv1": {Of: "retained", Bytes: alloc.MiB / 2, Inputs: []alloc.Shape{{8, 3, 32, 32}}, FLOPs: 3_538_944, Params: 896},
		"step/forward/relu":  {Of: "allocated", Bytes: alloc.MiB / 4, FLOPs: 100},
		"never":              {Of: "peak", Bytes: 1},
	}))
	sorted, err := p.Sorted("peak")
	require.NoError(t, err)
	golden(t, "profile.txt", p.Tree()+"\n\n"+sorted.String()+"\n")

	assert.ErrorContains(t, p.SetEstimates(map[string]sections.Estimate{"step": {Of: "time"}}), `estimate for "step": of "time": want one of allocated, retained`)
}

func TestProfileIsSortedByEachColumn(t *testing.T) {
	p := profiled(t)
	require.NoError(t, p.SetEstimates(map[string]sections.Estimate{"step/forward/conv1": {Of: "retained", FLOPs: 3_538_944}}))
	paths := func(p sections.Profile) (paths []string) {
		for _, r := range p {
			paths = append(paths, strings.TrimPrefix(r.Path, "step/"))
		}
		return paths
	}
	for _, test := range []struct {
		by   string
		want []string
	}{
		{"tree", []string{"step", "forward", "forward/conv1", "forward/relu"}},
		{"path", []string{"step", "forward", "forward/conv1", "forward/relu"}},
		{"calls", []string{"forward", "forward/conv1", "forward/relu", "step"}},
		{"self-peak", []string{"forward", "forward/conv1", "forward/relu", "step"}},
		{"flops", []string{"forward/conv1", "step", "forward", "forward/relu"}},
		{"line", []string{"step", "forward", "forward/conv1", "forward/relu"}},
	} {
		sorted, err := p.Sorted(test.by)
		require.NoError(t, err)
		assert.Equal(t, test.want, paths(sorted), test.by)
	}
	_, err := p.Sorted("weight")
	assert.ErrorContains(t, err, `parse column "weight": want one of tree, path, calls`)
	assert.Equal(t, []string{"step", "forward", "forward/conv1", "forward/relu"}, paths(p), "as before")
}

func TestProfileAsJSON(t *testing.T) {
	p := profiled(t)
	require.NoError(t, p.SetEstimates(map[string]sections.Estimate{
		"step/forward":       {Of: "retained", Bytes: 1},
		"step/forward/conv1": {Of: "peak", Bytes: 1},
		"step/forward/relu":  {Of: "self-peak", Bytes: 1 << 18},
		"step":               {Of: "live", Bytes: 0},
	}))
	p, err := p.Sorted("retained")
	require.NoError(t, err)
	text, err := json.Marshal(p)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"of":"retained"`)
	var read struct {
		Schema  string
		Version int
		Rows    []sections.Row
	}
	require.NoError(t, json.Unmarshal(text, &read))
	assert.Equal(t, "gpumemtrack.profile", read.Schema)
	assert.Equal(t, 2, read.Version)
	assert.Equal(t, []sections.Row(p), read.Rows)
	for _, r := range read.Rows {
		assert.Equal(t, map[string]alloc.Bytes{
			"step":               5 * alloc.MiB / 2,
			"step/forward":       5*alloc.MiB/4 - 1,
			"step/forward/conv1": 17*alloc.MiB/4 - 1,
			"step/forward/relu":  0,
		}[r.Path], r.Difference(), r.Path)
	}
}

func TestProfileWithDeviceTime(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	const calls = 1000 // more than wait to be read at once
	for range calls {
		tr.Do("step", func() {})
	}
	for _, r := range tr.Profile() {
		assert.Equal(t, int64(calls), r.Calls)
		assert.Positive(t, r.DeviceTime)
		assert.Less(t, r.DeviceTime, time.Minute)
	}
}

func TestProfileFollowsWhatIsLive(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	var buf *tracker.Buffer
	tr.Do("a/b", func() { buf = take(t, tr, tracker.Activation, 256) })
	live := func() (live []alloc.Bytes) {
		for _, r := range tr.Profile() {
			live = append(live, r.Live.Bytes)
		}
		return live
	}
	assert.Equal(t, []alloc.Bytes{1024, 1024}, live(), "a and a/b")
	require.NoError(t, buf.Free())
	assert.Equal(t, []alloc.Bytes{0, 0}, live())
}
