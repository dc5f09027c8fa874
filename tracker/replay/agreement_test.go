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
)

// TestAgreement: of its own history a replay agrees in every call and address, and of one with the wrong settings it
// says where it does not, and by how much.
func TestAgreement(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	for range 3 {
		p.alloc(33 * alloc.MiB)
	}
	r := p.dump(0)
	result, err := replay.Run(r, replay.Config{Allocator: "driver", Memory: 50 * alloc.MiB})
	require.NoError(t, err)
	const whole = "with the recorded settings, a replay makes 3 of 3 driver calls and has 3 of 3 addresses as recorded"
	assert.Contains(t, result.String(), "note: "+whole+"\n", "of any replay")
	x, err := replay.Explain(r, "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), whole+"\n")

	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"}
	x, err = replay.Explain(r, "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "makes 0 of 3 driver calls (and 3 others) and has 0 of 3 addresses as recorded; it reserves 42.0 MiB more than recorded: smaller differences between settings mean nothing\n")
	encoded, err := json.Marshal(x)
	require.NoError(t, err)
	assert.Contains(t, string(encoded), `"agreement":{"driver_calls":0,"recorded_driver_calls":3,"other_driver_calls":3,"addresses":0,"recorded_addresses":3,"peak_reserved_bytes":150994944,"recorded_peak_reserved_bytes":106954752}`)

	none, err := replay.Explain(&snapshot.Dump{Snapshot: r.Snapshot}, "")
	require.NoError(t, err)
	encoded, err = json.Marshal(none)
	require.NoError(t, err)
	assert.Contains(t, string(encoded), `"agreement":null`)
}

// TestUnknownSettingsAreANote: a later PyTorch may have settings that this program does not know.
func TestUnknownSettingsAreANote(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(33 * alloc.MiB)
	r := p.dump(0)
	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20,from_the_future:[a:1,b:2],,large_segment_size_mb:12,backend:cudaMallocAsync"}
	cfg := replay.Recorded(r)
	want, err := cache.ParseConfig("max_split_size_mb:20,large_segment_size_mb:12")
	require.NoError(t, err)
	assert.Equal(t, want, cfg.Conf)
	result, err := replay.Run(r, cfg)
	require.NoError(t, err)
	assert.Contains(t, result.String(), "note: the recorded setting from_the_future:[a:1,b:2] is not known here: replays are without it\n")
	encoded, err := json.Marshal(result)
	require.NoError(t, err)
	assert.Contains(t, string(encoded), `"unknown_settings":["from_the_future:[a:1,b:2]","backend:cudaMallocAsync"]`)
	x, err := replay.Explain(r, "end")
	require.NoError(t, err)
	assert.Empty(t, x.NoReplay())
	assert.Contains(t, x.String(), "the recorded setting backend:cudaMallocAsync is not known here")
}
