package replay_test

import (
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
)

// failed is the dump of a program whose latest request failed, with so much memory that the driver had left.
func failed(p *program, free alloc.Bytes) *snapshot.Dump {
	r := p.dump(0)
	r.OOM = &snapshot.OOM{Free: free, Reserved: r.Snapshot.Reserved, CallSites: []mem.CallSiteTally{
		{Frame: mem.Frame{Function: "main.step", File: "main.go", Line: 7}, Tally: mem.Tally{Count: 2, Bytes: 80 * alloc.MiB}},
	}}
	return r
}

// TestAdvice: of a request for which there is memory in pieces, the setting that fits is named; of one for which
// there is not enough, how much is too much.
func TestAdvice(t *testing.T) {
	pieces := newProgram(t, 1, 110*alloc.MiB, cache.Config{}, 1)
	pieces.alloc(40 * alloc.MiB)
	pieces.alloc(40 * alloc.MiB)
	pieces.free(0)
	pieces.alloc(5 * alloc.MiB)
	pieces.alloc(35 * alloc.MiB)
	pieces.free(0)
	pieces.alloc(5 * alloc.MiB)
	pieces.free(1)
	pieces.alloc(60 * alloc.MiB)
	assert.Equal(t, "expandable_segments:True fits, with 100.0 MiB.", replay.Advice(failed(pieces, 30*alloc.MiB)))

	assert.Contains(t, replay.Advice(failed(pieces, 100*alloc.MiB)), "Unknown: a replay with the recorded settings does not run out of memory")
	assert.Empty(t, replay.Advice(pieces.dump(0)), "it is of no error")
	assert.Empty(t, replay.Advice(failed(pieces, -1)), "it is not known what was free")

	full := newProgram(t, 1, 110*alloc.MiB, cache.Config{}, 1)
	full.alloc(200 * alloc.MiB) // the program went on after this error
	full.alloc(40 * alloc.MiB)
	full.alloc(40 * alloc.MiB)
	full.alloc(60 * alloc.MiB)
	full.free(0) // and ended after that one
	assert.Equal(t, "No setting helps: 30.0 MiB too much. main.go:7 main.step holds 80.0 MiB.", replay.Advice(failed(full, 30*alloc.MiB)))

	none := newProgram(t, 1, 110*alloc.MiB, cache.Config{}, 1)
	none.alloc(40 * alloc.MiB)
	none.free(0)
	assert.Empty(t, replay.Advice(failed(none, 30*alloc.MiB)), "the history has no error")
}

// TestAdviceOfARecording: on the device that had it, the request could not be served.
func TestAdviceOfARecording(t *testing.T) {
	r := open(t, "gcn-qwen3embed-3gpu-expandable-oom", 1)
	advice := replay.Advice(r)
	assert.True(t, strings.HasPrefix(advice, "No setting helps: 4.7 GiB too much. part3.py:174 step2 holds 29.7 GiB."), advice)
}

// TestAdviceSaysWhatItIsWorth where a replay with the recorded settings does not do what was recorded.
func TestAdviceSaysWhatItIsWorth(t *testing.T) {
	r := open(t, "gcn-qwen3embed-3gpu-expandable-oom", 1)
	assert.NotContains(t, replay.Advice(r), "But")
	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
	assert.Regexp(t, `\. But with the recorded settings, a replay makes \d+ of 46 driver calls .*\.$`, replay.Advice(r))
}

// TestAdviceOfAnExactFit: the boundary between what does not fit at all and what does not fit in pieces is what the driver alone
// would need, registered memory included.
func TestAdviceOfAnExactFit(t *testing.T) {
	p := newProgram(t, 1, 35*alloc.MiB, cache.Config{}, 1)
	p.add(tables.EventEntry{Action: mem.Registered, Ptr: 0x1000, Allocated: 10 * alloc.MiB, Tensor: p.tensor(10 * alloc.MiB)})
	p.add(tables.EventEntry{Action: mem.Unregistered, Ptr: 0x1000, Allocated: 10 * alloc.MiB, Tensor: p.tensor(10 * alloc.MiB)})
	p.add(tables.EventEntry{Action: mem.Registered, Ptr: 0x1000, Allocated: 10 * alloc.MiB, Tensor: p.tensor(10 * alloc.MiB)})
	p.alloc(33 * alloc.MiB)
	p.alloc(alloc.MiB) // of a segment of 2 MiB, if there is room for it
	r := p.dump(0)
	r.OOM = &snapshot.OOM{Reserved: 34 * alloc.MiB, Free: 0}
	registered := func(n alloc.Bytes) *snapshot.Dump {
		lists := *tables.Of(&r.Snapshot.Tables)
		lists.Allocations = append([]tables.AllocationEntry{{Site: int32(len(lists.Sites)), Ptr: 0x1000, Allocated: n, Foreign: true}}, lists.Allocations...)
		lists.Sites = append(lists.Sites, tables.SiteEntry{Tensor: p.tensor(10 * alloc.MiB), Live: 1, Total: 1})
		r := *r
		s := *r.Snapshot
		s.Tables, s.Registered = tables.Wrap(lists), n
		r.Snapshot = &s
		return &r
	}
	assert.Equal(t, "What is needed at once, 44.0 MiB, would fit, but in none of the settings that were replayed: the free memory is in pieces.",
		replay.Advice(registered(10*alloc.MiB)))
	r.OOM.Reserved--
	assert.Equal(t, "No setting helps: 1 B too much.", replay.Advice(registered(10*alloc.MiB)))
}

// TestAdviceOfTheFirstRequest: nothing is reserved and nothing came before it.
func TestAdviceOfTheFirstRequest(t *testing.T) {
	p := newProgram(t, 1, 50*alloc.MiB, cache.Config{}, 1)
	p.alloc(60 * alloc.MiB)
	require.Len(t, p.events, 1)
	r := p.dump(0)
	r.Snapshot.Cache = new(alloc.Stats)
	r.OOM = &snapshot.OOM{Free: 50 * alloc.MiB}
	assert.Equal(t, "No setting helps: 10.0 MiB too much.", replay.Advice(r))
	r.OOM.Reserved = -1
	assert.Empty(t, replay.Advice(r), "it is not known what was reserved")
}

// TestAdviceNamesNoSettingThatWasUsed: the recorded settings ran out of memory. Those that fit are tried, and the default is one.
func TestAdviceNamesNoSettingThatWasUsed(t *testing.T) {
	conf, err := cache.ParseConfig("roundup_power2_divisions:8")
	require.NoError(t, err)
	p := newProgram(t, 1, 78*alloc.MiB, conf, 1)
	p.alloc(33 * alloc.MiB)
	p.alloc(41 * alloc.MiB)
	r := failed(p, 42*alloc.MiB)
	r.Snapshot.Settings = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:8"}
	assert.Equal(t, "the default setting fits, with 76.0 MiB.", replay.Advice(r))
}
