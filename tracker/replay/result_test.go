package replay_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// decoded returns a value's JSON as a map.
func decoded(t *testing.T, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

func ran(t *testing.T, r *snapshot.Dump, cfg replay.Config) replay.Result {
	t.Helper()
	got, err := replay.Run(r, cfg)
	require.NoError(t, err)
	return got
}

const agrees = "note: with the recorded settings, a replay makes 1 of 1 driver calls and has 1 of 1 addresses as recorded\n"

// TestResultText: a result says what its history has and nothing of what it lacks. A note that is not due is noise, and one
// that is missing lets a reader trust a replay that begins in the middle.
func TestResultText(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	got := ran(t, p.dump(0), replay.Config{})
	assert.Equal(t, "fits: 2 events, allocator cache, without a limit\n"+
		"replayed: peak 20.0 MiB requested, 20.0 MiB in blocks, 20.0 MiB reserved; driver calls: 1 allocations, 0 frees; retries: 0\n"+
		"recorded: peak 20.0 MiB requested, 20.0 MiB in blocks, 20.0 MiB reserved; driver calls: 1 allocations, 0 frees; retries: 0; out of memory: 0\n"+
		agrees, got.String())
	assert.Zero(t, got.OOMs)
	for _, key := range []string{"memory_bytes", "smallest_memory_bytes", "replays", "oom", "gap", "unknown_settings"} {
		assert.NotContains(t, decoded(t, got), key)
	}

	got = ran(t, p.dump(0), replay.Config{Memory: 10 * alloc.MiB})
	assert.Contains(t, got.String(), "does not fit: 2 events, allocator cache, on 10.0 MiB\nout of memory at event 1: 20.0 MiB requested at main.go:7 main.step\n")
	assert.EqualValues(t, 1, got.OOMs)
	assert.NotContains(t, decoded(t, got), "smallest_memory_bytes", "nobody searched")

	smallest, err := replay.Smallest(p.dump(0), replay.Config{})
	require.NoError(t, err)
	assert.EqualValues(t, 20*alloc.MiB, decoded(t, smallest)["smallest_memory_bytes"])
	assert.EqualValues(t, 1, decoded(t, smallest)["replays"], "its blocks need as much as its segments: there is nothing to search")
}

// TestResultTextOfTheBeginning: what was live before the first event is named, also where no event is missing, and events that
// are missing are named, also where nothing was live.
func TestResultTextOfTheBeginning(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	cut := len(p.events)
	p.alloc(30 * alloc.MiB)
	const live = "note: the history begins with 1 buffers live, 20.0 MiB, and 20.0 MiB reserved: replayed from the recorded segments\n"
	assert.Contains(t, ran(t, p.dump(cut), replay.Config{}).String(), live)

	// As in a file of PyTorch, which does not say how many events came before.
	r := p.dump(0)
	r.History = p.from(0, p.events[cut:])
	r.Snapshot.Events = uint64(len(p.events) - cut)
	assert.Contains(t, ran(t, r, replay.Config{}).String(), live)
	assert.Contains(t, ran(t, p.dump(cut), replay.Config{Allocator: "driver"}).String(), "replayed with these buffers packed, without older holes\n")

	p = newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	p.free(0)
	p.empty()
	cut = len(p.events)
	p.alloc(30 * alloc.MiB)
	assert.Contains(t, ran(t, p.dump(cut), replay.Config{}).String(), "note: the history begins with 0 buffers live, 0 B, and 0 B reserved: nothing\n")
}

// TestEarlierPeak: a peak before the first event is not replayed, so a device on which the replay fits may be too small. It is
// told only if it is higher than all that was replayed.
func TestEarlierPeak(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	p.free(0)
	cut := len(p.events)
	p.alloc(10 * alloc.MiB)
	const note = "note: before the history, 20.0 MiB were requested at a time: more than in it, and not replayed\n"
	peak := func(first int, bytes alloc.Bytes) string {
		r := p.dump(first)
		r.Snapshot.Peak = mem.Tally{Count: 1, Bytes: bytes}
		return ran(t, r, replay.Config{}).String()
	}
	assert.Contains(t, peak(cut, 20*alloc.MiB), note)
	assert.NotContains(t, peak(cut, 10*alloc.MiB), "before the history", "the peak is in the history")
	assert.NotContains(t, peak(0, 30*alloc.MiB), "before the history", "the history has the beginning")
}

// TestMissingEvents: a snapshot that counts more events than the history has says that the latest are missing.
func TestMissingEvents(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	r := p.dump(0)
	r.Snapshot.Events += 3
	got := ran(t, r, replay.Config{})
	require.NotNil(t, got.Gap())
	assert.EqualValues(t, 2, got.Gap().Event, "the first that is missing")
	assert.EqualValues(t, 3, got.Gap().Events)
	assert.Contains(t, got.String(), "note: the history is torn, first at event 2 (the latest events): 0 buffers, 0 B,")
	assert.Contains(t, got.String(), "note: its latest 3 events are missing\n")
}

// TestAgreementText: a replay that reserves less than was recorded says by how much, as one that reserves more does.
func TestAgreementText(t *testing.T) {
	conf, err := cache.ParseConfig("roundup_power2_divisions:2")
	require.NoError(t, err)
	p := newProgram(t, 1, 0, conf, 1)
	p.alloc(33 * alloc.MiB) // in a block of 48
	assert.Contains(t, ran(t, p.dump(0), replay.Config{}).String(), "it reserves 14.0 MiB less than recorded: smaller differences between settings mean nothing")
}
