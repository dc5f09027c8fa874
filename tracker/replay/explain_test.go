package replay_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// TestExplain compares the account of random programs with the caches' own.
func TestExplain(t *testing.T) {
	for _, settings := range []string{"", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:20"} {
		conf, err := cache.ParseConfig(settings)
		require.NoError(t, err)
		for seed := range uint64(30) {
			p := newProgram(t, seed, 4*alloc.GiB, conf, 1)
			p.run(400)
			s := p.snapshot(len(p.events))
			if conf.ExpandableSegments {
				for i := range s.Segments {
					s.Segments[i].Expandable = true
				}
			}
			x := explain.Snapshot(s)
			stats := p.caches[0].Stats()
			require.Equal(t, stats.Reserved.Bytes.Current, x.Reserved)
			require.Equal(t, stats.Requested.Bytes.Current, x.Requested)
			require.Equal(t, stats.Allocated.Bytes.Current, x.Requested+x.Rounding+x.Unsplit)
			require.Equal(t, stats.Releasable, x.Releasable, "%s, seed %d", settings, seed)
			require.Equal(t, stats.Inactive.Bytes.Current, x.Releasable+x.Stuck)
			_, small := x.Find(1)
			_, large := x.Find(2 * alloc.MiB)
			require.Equal(t, stats.LargestInactive, max(small, large))

			before := p.dev.Counts().Used
			p.empty()
			require.Equal(t, x.Releasable, before-p.dev.Counts().Used)
		}
	}
}

// TestFind asks a cache for as many requests as it should have room for.
func TestFind(t *testing.T) {
	for seed := range uint64(30) {
		p := newProgram(t, seed, 0, cache.Config{}, 1)
		p.run(400)
		for _, n := range []alloc.Bytes{512, 700, 64 * alloc.KiB, 2 * alloc.MiB} {
			q := newProgram(t, seed, 0, cache.Config{}, 1)
			q.run(400)
			room, largest := explain.Snapshot(q.snapshot(0)).Find(n)
			held := q.caches[0].Stats().Reserved.Bytes.Current
			require.LessOrEqual(t, alloc.Bytes(room)*n, held)
			require.Equal(t, largest >= n, room > 0)
			if room > 0 {
				q.alloc(n)
				require.Equal(t, held, q.caches[0].Stats().Reserved.Bytes.Current, "the driver is not asked")
			} else {
				q.alloc(n)
				require.Less(t, held, q.caches[0].Stats().Reserved.Bytes.Current)
			}
		}
	}
}

func TestExplainText(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(40 * alloc.MiB)
	p.free(0)
	p.alloc(5 * alloc.MiB)
	r := p.dump(0)
	x, err := replay.Explain(r, "")
	require.NoError(t, err)
	text := x.String()
	assert.Contains(t, text, "reserved 40.0 MiB = 5.0 MiB requested + 0 B rounding + 0 B left unsplit + 35.0 MiB inactive\n")
	assert.Contains(t, text, "ClearCache would give back 0 B; 35.0 MiB is stuck beside a buffer in 1 segment\n")
	assert.Contains(t, text, "its largest inactive block has 35.0 MiB")
	assert.Contains(t, text, "is kept by one buffer of 5.0 MiB, Activation at main.go:7 main.step")
	assert.Contains(t, text, "with expandable_segments:True it would have reserved")
	encoded, err := json.Marshal(x)
	require.NoError(t, err)
	assert.Contains(t, string(encoded), `"stuck_bytes":36700160`)

	peak, err := replay.Explain(r, "peak")
	require.NoError(t, err)
	assert.Equal(t, 40*alloc.MiB, peak.Requested)

	none, err := replay.Explain(&snapshot.Dump{Snapshot: r.Snapshot}, "")
	require.NoError(t, err)
	assert.Equal(t, "the file has no events", none.NoReplay())
	assert.Equal(t, x.Stuck, none.Stuck)
}
