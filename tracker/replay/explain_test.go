package replay_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
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
			require.Equal(t, stats.Reclaimable, x.Reclaimable, "%s, seed %d", settings, seed)
			require.Equal(t, stats.Inactive.Bytes.Current, x.Reclaimable+x.Pinned)
			_, small := x.Find(1)
			_, large := x.Find(2 * alloc.MiB)
			require.Equal(t, stats.LargestInactive, max(small, large))

			before := p.dev.Counts().Used
			p.empty()
			require.Equal(t, x.Reclaimable, before-p.dev.Counts().Used)
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
	assert.Contains(t, text, "ClearCache would give back 0 B; 35.0 MiB is pinned beside a buffer in 1 segment\n")
	assert.Contains(t, text, "its largest inactive block has 35.0 MiB")
	assert.Contains(t, text, "is pinned by one buffer of 5.0 MiB, Activation at main.go:7 main.step")
	assert.Contains(t, text, "with expandable_segments:True it would have reserved")
	encoded, err := json.Marshal(x)
	require.NoError(t, err)
	assert.Contains(t, string(encoded), `"pinned_bytes":36700160`)

	peak, err := replay.Explain(r, "peak")
	require.NoError(t, err)
	assert.Equal(t, 40*alloc.MiB, peak.Requested)

	none, err := replay.Explain(&snapshot.Dump{Snapshot: r.Snapshot}, "")
	require.NoError(t, err)
	assert.Equal(t, "the file has no events", none.NoReplay())
	assert.Equal(t, x.Pinned, none.Pinned)
}

// pinned is a program whose line main.keep pins memory: its buffer lies in a segment of which the rest cannot be used again.
// Had it been allocated first, the large buffers would have had one segment after the other.
func pinned(t *testing.T) (p *program, keep mem.Frame) {
	p = newProgram(t, 1, 0, cache.Config{}, 1)
	return p, pin(p)
}

func pin(p *program) (keep mem.Frame) {
	step := p.stack
	p.alloc(40 * alloc.MiB)
	p.free(0)
	keep = p.at("main.keep", 9)
	p.alloc(5 * alloc.MiB)
	p.alloc(5 * alloc.MiB)
	p.free(0) // one of the line's buffers is freed: it would not have been first
	p.stack = step
	p.alloc(40 * alloc.MiB)
	p.free(1)
	return keep
}

// TestExplainWhatWouldHaveHelped: each change is measured by a replay from the beginning that it is compared with.
func TestExplainWhatWouldHaveHelped(t *testing.T) {
	p, keep := pinned(t)
	x, err := replay.Explain(p.dump(0), "")
	require.NoError(t, err)
	assert.Equal(t, []replay.Saving{
		{Site: keep, Buffers: mem.Tally{Count: 1, Bytes: 5 * alloc.MiB}, PeakReserved: 60 * alloc.MiB, Saved: 20 * alloc.MiB},
	}, x.Earlier())
	_, text, _ := strings.Cut(x.String(), "a replay with ")
	assert.Equal(t, ""+
		"the recorded settings reserves 80.0 MiB; compared with that:\n"+
		"with expandable_segments:True it would have reserved 60.0 MiB, 20.0 MiB less\n"+
		"with expandable_segments:True,roundup_power2_divisions:8 it would have reserved 60.0 MiB, 20.0 MiB less\n"+
		"with max_split_size_mb:128 it would have reserved as much\n"+
		"with roundup_power2_divisions:8 it would have reserved as much\n"+
		"had 1 buffer, 5.0 MiB at main.go:9 main.keep been allocated first, it would have reserved 60.0 MiB, 20.0 MiB less\n"+
		"with the recorded settings, a replay makes 2 of 2 driver calls and has 4 of 4 addresses as recorded\n", text)
	assert.NotContains(t, x.String(), "what would help")
	assert.NotContains(t, x.String(), "failed")
	assert.NotContains(t, x.String(), "unknown")
	keys := decoded(t, x)
	assert.Equal(t, map[string]any{"packed_bytes": float64(80 << 20), "recorded_bytes": float64(80 << 20), "failed_request_bytes": float64(0)}, keys["baseline"])
	for _, key := range []string{"advice", "left_out", "unknown_settings", "no_replay"} {
		assert.NotContains(t, keys, key)
	}

	// A setting can cost memory, too. The recorded setting itself is none to compare with, and the default is one.
	r := p.dump(0)
	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
	x, err = replay.Explain(r, "")
	require.NoError(t, err)
	var settings []string
	for _, s := range x.Settings() {
		settings = append(settings, s.Setting)
	}
	assert.Equal(t, []string{"expandable_segments:True,roundup_power2_divisions:8", "default", "max_split_size_mb:128", "roundup_power2_divisions:8"}, settings)
	assert.Contains(t, x.String(), "\nwith default it would have reserved 80.0 MiB, 20.0 MiB more\n")
	assert.Empty(t, x.Earlier(), "with expandable segments it would have saved nothing")
	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:8"}
	x, err = replay.Explain(r, "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "with default it would")
	assert.NotContains(t, x.String(), "with roundup_power2_divisions:8 it would")
}

// TestExplainATornHistory: a buffer whose address was given again is freed, though its free is not in the history. It is not
// among those that could have been allocated first.
func TestExplainATornHistory(t *testing.T) {
	p, keep := pinned(t)
	at := slices.IndexFunc(p.events, func(e tables.EventEntry) bool { return e.Action == mem.Freed && e.Tensor.Each == 5*alloc.MiB })
	require.Positive(t, at)
	again := p.events[at]
	again.Action, again.Stack = mem.Allocated, p.stack
	p.events = slices.Insert(p.events, at, again)
	x, err := replay.Explain(p.dump(0), "")
	require.NoError(t, err)
	require.Len(t, x.Earlier(), 1)
	assert.Equal(t, keep, x.Earlier()[0].Site)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 5 * alloc.MiB}, x.Earlier()[0].Buffers)
}

// TestExplainAHistoryThatBeginsLate: events are found by their numbers in the program. A buffer from before the history cannot be
// allocated earlier.
func TestExplainAHistoryThatBeginsLate(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(40 * alloc.MiB)
	p.free(0)
	p.empty()
	first := len(p.events)
	keep := pin(p)
	x, err := replay.Explain(p.dump(first), "")
	require.NoError(t, err)
	require.Len(t, x.Earlier(), 1)
	assert.Equal(t, keep, x.Earlier()[0].Site)
	x, err = replay.Explain(p.dump(first+4), "")
	require.NoError(t, err)
	assert.NotEmpty(t, x.Lines)
	assert.Empty(t, x.Earlier())
}

// TestExplainAnError: at an error the explanation says what failed and what would have helped. A replay gives the request its
// memory, so what it reserves has that in it: of several requests that failed the largest.
func TestExplainAnError(t *testing.T) {
	p := newProgram(t, 1, 110*alloc.MiB, cache.Config{}, 1)
	p.alloc(300 * alloc.MiB)
	p.alloc(40 * alloc.MiB)
	p.alloc(40 * alloc.MiB)
	p.alloc(60 * alloc.MiB)
	r := failed(p, 30*alloc.MiB)
	x, err := replay.Explain(r, "oom")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "at the error, when a request of 60.0 MiB failed: reserved 80.0 MiB = ")
	assert.Contains(t, x.String(), "\nwhat would help: No setting helps: 30.0 MiB too much. main.go:7 main.step holds 80.0 MiB.\n")
	assert.Contains(t, x.String(), "a replay with the recorded settings reserves 300.0 MiB, with the 300.0 MiB that failed; compared with that:\n")
	assert.Equal(t, "No setting helps: 30.0 MiB too much. main.go:7 main.step holds 80.0 MiB.", decoded(t, x)["advice"])
	end, err := replay.Explain(r, "end")
	require.NoError(t, err)
	assert.NotContains(t, end.String(), "what would help")
}

// TestExplainWithoutReplay says why there is none, and has no baseline.
func TestExplainWithoutReplay(t *testing.T) {
	p, _ := pinned(t)
	x, err := replay.Explain(&snapshot.Dump{Snapshot: p.snapshot(0)}, "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "\nwhat would have helped is unknown: the file has no events\n")
	assert.NotContains(t, x.String(), "compared with that")
	assert.Nil(t, decoded(t, x)["baseline"])
}

// TestExplainFromTwoBeginnings: a setting is compared from a beginning without the holes that the recorded one had, so that none has
// the holes of another; what a line would have saved is compared from the recorded beginning.
func TestExplainFromTwoBeginnings(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(40 * alloc.MiB)
	p.free(0)
	p.alloc(30 * alloc.MiB) // beside a hole of 10
	first := len(p.events)
	step := p.stack
	p.alloc(40 * alloc.MiB)
	p.free(1)
	p.at("main.keep", 9)
	p.alloc(12 * alloc.MiB)
	p.stack = step
	p.alloc(40 * alloc.MiB)
	x, err := replay.Explain(p.dump(first), "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "a replay with the recorded settings reserves 110.0 MiB, and 120.0 MiB for what is allocated first; compared with that:\n")
	assert.Contains(t, x.String(), "\nhad 1 buffer, 12.0 MiB at main.go:9 main.keep been allocated first, it would have reserved 92.0 MiB, 28.0 MiB less\n")
}
