package replay_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// naive replays a history plainly, through the naive allocator; its result is that of Run.
func naive(t *testing.T, r *snapshot.Dump, cfg replay.Config, streams int) (fits bool, oom uint64, reserved, requested alloc.Bytes) {
	dev := counting.New(cmp.Or(cfg.Memory, alloc.TiB)) // without a limit the naive one would reserve more addresses than there are
	conf := cfg.Conf
	conf.ExpandableSegments = cfg.Allocator == "expandable"
	var caches []*cachetest.Naive
	for range streams {
		caches = append(caches, cachetest.NewNaive(dev, conf))
	}
	type place struct {
		ptr    alloc.Ptr
		stream alloc.Stream
	}
	places := make(map[alloc.Ptr]place)
	request := func(stream alloc.Stream, n alloc.Bytes) (p alloc.Ptr, err error) {
		if cfg.Allocator == "driver" {
			return dev.Alloc(n)
		}
		if p, err = caches[stream].Alloc(n); err != nil && streams > 1 {
			for i, c := range caches {
				if i != int(stream) {
					c.Trim()
				}
			}
			p, err = caches[stream].Alloc(n)
		}
		return p, err
	}
	free := func(at place) {
		if cfg.Allocator == "driver" {
			require.NoError(t, dev.Free(at.ptr))
		} else {
			require.NoError(t, caches[at.stream].Free(at.ptr))
		}
	}
	level := alloc.Bytes(0)
	for e := range r.Events() {
		switch e.Action {
		case mem.Allocated, mem.OutOfMemory:
			p, err := request(e.Stream, e.Requested)
			if err != nil {
				return false, e.Seq, dev.Counts().Peak, requested
			}
			level += e.Requested
			requested = max(requested, level)
			if e.Action == mem.OutOfMemory {
				free(place{p, e.Stream})
				level -= e.Requested
			} else {
				places[e.Ptr] = place{p, e.Stream}
			}
		case mem.Freed:
			free(places[e.Ptr])
			level -= e.Requested
		case mem.SegmentFreed:
			if cfg.Allocator != "driver" {
				for _, c := range caches {
					c.Trim()
				}
			}
		}
	}
	return true, 0, dev.Counts().Peak, requested
}

// TestNaive compares replays of random histories with a naive model of each allocator. The
// addresses of segments are left out of the histories: they break ties.
func TestNaive(t *testing.T) {
	for _, settings := range []string{"", "max_split_size_mb:20", "roundup_power2_divisions:4"} {
		conf, err := cache.ParseConfig(settings)
		require.NoError(t, err)
		for seed := range uint64(25) {
			for streams := 1; streams <= 3; streams++ {
				p := newProgram(t, seed, 400*alloc.MiB, cache.Config{}, streams)
				p.run(500)
				for i := range p.events {
					if p.events[i].Action == mem.SegmentAllocated {
						p.events[i].Ptr = 0
					}
				}
				r := p.dump(0)
				for _, a := range replay.Allocators() {
					for _, memory := range []alloc.Bytes{0, 350 * alloc.MiB, alloc.Bytes(rand.New(rand.NewPCG(seed, 1)).IntN(300)) * alloc.MiB} {
						cfg := replay.Config{Allocator: a, Memory: memory, Conf: conf}
						got, err := replay.Run(r, cfg)
						require.NoError(t, err)
						fits, oom, reserved, requested := naive(t, r, cfg, streams)
						require.Equal(t, fits, got.Fits, "seed %d, %d streams, %v %v", seed, streams, a, memory)
						require.Equal(t, requested, got.PeakRequested)
						require.Equal(t, reserved, got.PeakReserved, "seed %d, %d streams, %v %v", seed, streams, a, memory)
						if !fits {
							require.Equal(t, oom, got.OOM().Event)
							require.Equal(t, memory-got.OOM().Reserved, got.OOM().Free)
						}
						require.Nil(t, got.Gap())
					}
				}
			}
		}
	}
}

// TestCut cuts histories at random places. The state before what is left is that of then, block by
// block, and its replay does what was recorded.
func TestCut(t *testing.T) {
	for seed := range uint64(40) {
		p := newProgram(t, seed, 0, cache.Config{}, 1+int(seed%3))
		p.run(200 + int(seed)*10)
		cut := len(p.events)
		then := p.snapshot(cut)
		p.run(300)
		r := p.dump(cut)

		_, first := walk.Events(r)
		start, err := rewind.At(r, first)
		require.NoError(t, err)
		require.Equal(t, then.Segments, start.Segments, "seed %d", seed)
		require.Equal(t, then.Levels.Allocated, start.Allocated)
		require.Equal(t, then.Live, start.Live)
		require.Equal(t, then.Reserved, start.Reserved)

		cfg := replay.Recorded(r)
		got, err := replay.Run(r, cfg)
		require.NoError(t, err)
		require.True(t, got.Fits)
		require.Nil(t, got.Gap())
		require.Equal(t, "as recorded", got.Layout())
		require.Equal(t, peaks(got.Recorded), peaks(got.Levels), "seed %d", seed)
	}
}

// peaks are what a replay and a dump can be compared by.
func peaks(l replay.Levels) replay.Levels {
	return replay.Levels{
		PeakRequested: l.PeakRequested, PeakAllocated: l.PeakAllocated, PeakReserved: l.PeakReserved,
		DriverAllocs: l.DriverAllocs, DriverFrees: l.DriverFrees,
	}
}

// TestCutExpandable has segments that grow and shrink.
func TestCutExpandable(t *testing.T) {
	for seed := range uint64(20) {
		p := newProgram(t, seed, 2*alloc.GiB, cache.Config{ExpandableSegments: true}, 1)
		p.run(300)
		cut := len(p.events)
		then := p.snapshot(cut)
		p.run(200)
		r := p.dump(cut)
		_, first := walk.Events(r)
		start, err := rewind.At(r, first)
		require.NoError(t, err)
		require.Equal(t, then.Reserved, start.Reserved, "seed %d", seed)
		require.Equal(t, then.Live, start.Live)
	}
}

// TestGap takes single events out of histories. The peaks of the whole lie between the bounds.
func TestGap(t *testing.T) {
	found := 0
	for seed := range uint64(60) {
		p := newProgram(t, seed, 0, cache.Config{}, 1)
		p.run(300)
		whole, err := replay.Run(p.dump(0), replay.Config{})
		require.NoError(t, err)
		require.Nil(t, whole.Gap())
		i := p.random.IntN(len(p.events))
		if a := p.events[i].Action; a != mem.Allocated && a != mem.Freed {
			continue
		}
		p.events = slices.Delete(p.events, i, i+1)
		got, err := replay.Run(p.dump(0), replay.Config{})
		require.NoError(t, err)
		if got.Gap() == nil {
			continue // the buffer was there before the first event, for all that is known
		}
		found++
		require.GreaterOrEqual(t, whole.PeakRequested, got.Gap().LeastRequested, "seed %d", seed)
		require.LessOrEqual(t, whole.PeakRequested, got.PeakRequested, "seed %d", seed)
		require.GreaterOrEqual(t, whole.PeakAllocated, got.Gap().LeastAllocated)
		require.Positive(t, got.Gap().Buffers)
		require.Contains(t, got.String(), "torn")
	}
	require.Greater(t, found, 10)
}

func TestSmallest(t *testing.T) {
	for seed := range uint64(10) {
		p := newProgram(t, seed, 0, cache.Config{}, 1)
		p.run(600)
		r := p.dump(0)
		for _, a := range replay.Allocators() {
			got, err := replay.Smallest(r, replay.Config{Allocator: a})
			require.NoError(t, err)
			require.True(t, got.Fits)
			require.LessOrEqual(t, got.Replays(), 20)
			require.GreaterOrEqual(t, got.Memory, got.PeakAllocated)
			again, err := replay.Run(r, replay.Config{Allocator: a, Memory: got.Memory})
			require.NoError(t, err)
			require.True(t, again.Fits)
			less, err := replay.Run(r, replay.Config{Allocator: a, Memory: got.Memory - 2*alloc.MiB})
			require.NoError(t, err)
			require.False(t, less.Fits, "%v %v", a, got.Memory)
		}
	}
}

// TestRegistered has memory of others, which takes room on the device but is not reserved.
func TestRegistered(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.add(tables.EventEntry{Action: mem.Registered, Ptr: 0x1000, Allocated: 30 * alloc.MiB, Tensor: p.tensor(30 * alloc.MiB)})
	p.alloc(20 * alloc.MiB)
	p.add(tables.EventEntry{Action: mem.Unregistered, Ptr: 0x1000, Allocated: 30 * alloc.MiB, Tensor: p.tensor(30 * alloc.MiB)})
	p.alloc(20 * alloc.MiB)
	got, err := replay.Run(p.dump(0), replay.Config{Memory: 50 * alloc.MiB})
	require.NoError(t, err)
	assert.True(t, got.Fits)
	assert.Equal(t, 40*alloc.MiB, got.PeakReserved)
	assert.Equal(t, 50*alloc.MiB, got.PeakRequested)
	got, err = replay.Run(p.dump(0), replay.Config{Memory: 49 * alloc.MiB})
	require.NoError(t, err)
	require.False(t, got.Fits)
	assert.Equal(t, 30*alloc.MiB, got.OOM().Others)
	assert.Contains(t, got.String(), "20.0 MiB requested at main.go:7 main.step\nthe device has 19.0 MiB free; 0 B are reserved")
	smallest, err := replay.Smallest(p.dump(0), replay.Config{})
	require.NoError(t, err)
	assert.Equal(t, 50*alloc.MiB, smallest.Memory)
}

// TestFreeFailed has a free that the driver refused: the buffer lives on.
func TestFreeFailed(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(20 * alloc.MiB)
	b := p.live[0]
	p.add(tables.EventEntry{Action: mem.Freed, Ptr: b.ptr, Allocated: b.allocated, Tensor: p.tensor(b.requested)})
	p.add(tables.EventEntry{Action: mem.FreeFailed, Ptr: b.ptr, Allocated: b.allocated, Tensor: p.tensor(b.requested)})
	p.alloc(20 * alloc.MiB)
	got, err := replay.Run(p.dump(0), replay.Config{})
	require.NoError(t, err)
	assert.Nil(t, got.Gap())
	assert.Equal(t, 40*alloc.MiB, got.PeakReserved)
}

func TestErrors(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.alloc(alloc.MiB)
	_, err := replay.Run(p.dump(len(p.events)), replay.Config{})
	require.ErrorIs(t, err, walk.ErrNoHistory)
	_, err = replay.Run(&snapshot.Dump{Snapshot: p.dump(0).Snapshot}, replay.Config{})
	require.ErrorIs(t, err, walk.ErrNoHistory)
	_, err = replay.Run(nil, replay.Config{})
	require.Error(t, err)
	_, err = replay.Run(p.dump(0), replay.Config{Allocator: "best"})
	require.ErrorContains(t, err, `allocator "best": want one of [cache expandable driver]`)
	_, err = replay.Run(p.dump(0), replay.Config{Memory: -1})
	require.ErrorContains(t, err, "memory of -1 bytes")

	light := p.dump(0)
	*tables.Of(&light.Snapshot.Tables) = tables.Tables{Stacks: p.stacks, Sections: []string{""}}
	_, err = replay.Run(light, replay.Config{})
	require.ErrorContains(t, err, "not told one by one")
}

func TestJSON(t *testing.T) {
	p := newProgram(t, 1, 0, cache.Config{}, 1)
	p.run(100)
	got, err := replay.Run(p.dump(0), replay.Config{Memory: 4 * alloc.MiB})
	require.NoError(t, err)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(text, &keys))
	for _, key := range []string{"fits", "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "driver_allocs", "driver_frees", "retries", "recorded", "start"} {
		assert.Contains(t, keys, key)
	}
	for _, key := range []string{"event", "requested_bytes", "free_bytes", "largest_inactive_bytes", "call_site"} {
		assert.Contains(t, keys["oom"], key)
	}
}

// hostile are entries made of bytes that somebody else chose.
func hostile(t testing.TB, text []byte) *snapshot.Dump {
	h := tables.HistoryTables{Stacks: new(tables.StackTable), Sections: []string{""}}
	lists := tables.Tables{Stacks: new(tables.StackTable), Sections: []string{""}, Allocations: []tables.AllocationEntry{}}
	sizes := []alloc.Bytes{0, 1, 511, 512, alloc.MiB, 2 * alloc.MiB, 20 * alloc.MiB, alloc.GiB, 1 << 40, 1 << 50, math.MaxInt64, -1, -math.MaxInt64}
	for len(text) >= 4 {
		size := sizes[int(text[1])%len(sizes)]
		ptr := alloc.Ptr(text[2]) << (text[3] % 60)
		each := min(max(size, 0), math.MaxInt64)
		x, err := tables.Untyped("", each)
		require.NoError(t, err)
		if text[0] >= 0xf0 {
			lists.Allocations = append(lists.Allocations, tables.AllocationEntry{Site: int32(len(lists.Sites)), Ptr: ptr, Allocated: size})
			lists.Sites = append(lists.Sites, tables.SiteEntry{Tensor: &x, Live: 1})
		} else {
			h.Events = append(h.Events, tables.EventEntry{Action: mem.Action(text[0] % 16), Ptr: ptr, Allocated: size, Tensor: &x, Stream: text[3] / 64, Since: time.Duration(text[3])})
		}
		text = text[4:]
	}
	if len(text) > 0 {
		h.First = uint64(text[0])
	}
	return &snapshot.Dump{Snapshot: &snapshot.Snapshot{Events: h.First + uint64(len(h.Events)), Tables: tables.Wrap(lists)}, History: tables.WrapHistory(h)}
}

// TestHuge has a hole that no size is twice as large as.
func TestHuge(t *testing.T) {
	segment := alloc.Segment{Ptr: 1, Size: math.MaxInt64, Pool: "large", Blocks: []alloc.Block{{Ptr: 1, Size: math.MaxInt64, State: alloc.Inactive}}}
	s := &snapshot.Snapshot{Segments: []alloc.Segment{segment}, Tables: tables.Wrap(tables.Tables{Allocations: []tables.AllocationEntry{}})}
	assert.Contains(t, explain.Snapshot(s).String(), "its largest inactive block has 8.0 EiB")
}

// TestAPrivatePoolThatIsGone: its memory serves no others, as long as its segment is there, if events name it.
func TestAPrivatePoolThatIsGone(t *testing.T) {
	const segment, other = alloc.Ptr(1 << 30), alloc.Ptr(1 << 31)
	x, err := tables.Untyped("", 2*alloc.MiB)
	require.NoError(t, err)
	h := tables.HistoryTables{Stacks: new(tables.StackTable), Sections: []string{""}}
	h.Events = []tables.EventEntry{
		{Action: mem.SegmentAllocated, Ptr: segment, Allocated: 20 * alloc.MiB},
		{Action: mem.Allocated, Ptr: segment, Allocated: x.Each, Tensor: &x},
		{Action: mem.SegmentAllocated, Ptr: other, Allocated: 20 * alloc.MiB},
		{Action: mem.Allocated, Ptr: other, Allocated: x.Each, Tensor: &x},
		{Action: mem.Freed, Ptr: segment, Allocated: x.Each, Tensor: &x},
		{Action: mem.SegmentFreed, Ptr: segment, Allocated: 20 * alloc.MiB},
		{Action: mem.SegmentAllocated, Ptr: segment, Allocated: 20 * alloc.MiB}, // of the default pool, at the same address
		{Action: mem.Allocated, Ptr: segment, Allocated: x.Each, Tensor: &x},
	}
	replayed := func(pools []tables.PoolEntry, first int) replay.Result {
		h := h
		h.Pools = pools
		h.Events, h.First = h.Events[first:], uint64(first)
		segments := []alloc.Segment{
			{Ptr: segment, Size: 20 * alloc.MiB, Pool: "large", Blocks: []alloc.Block{{Ptr: segment, Size: 2 * alloc.MiB, Requested: 2 * alloc.MiB, State: alloc.Allocated}, {Ptr: segment + 2<<20, Size: 18 * alloc.MiB, State: alloc.Inactive}}},
			{Ptr: other, Size: 20 * alloc.MiB, Pool: "large", Blocks: []alloc.Block{{Ptr: other, Size: 2 * alloc.MiB, Requested: 2 * alloc.MiB, State: alloc.Allocated}, {Ptr: other + 2<<20, Size: 18 * alloc.MiB, State: alloc.Inactive}}},
		}
		dump := &snapshot.Dump{
			Snapshot: &snapshot.Snapshot{
				Events: 8, Segments: segments, Levels: snapshot.Levels{Reserved: 40 * alloc.MiB},
				Tables: tables.Wrap(tables.Tables{Stacks: h.Stacks, Sections: h.Sections, Allocations: []tables.AllocationEntry{}}),
			},
			History: tables.WrapHistory(h),
		}
		var file bytes.Buffer
		require.NoError(t, dump.WriteJSON(&file))
		read, err := snapshot.ReadDump(&file)
		require.NoError(t, err)
		got, err := replay.Run(read, replay.Config{})
		require.NoError(t, err)
		return got
	}
	named := []tables.PoolEntry{{Seq: 0, Name: "0,1"}, {Seq: 5, Name: "0,1"}}
	assert.EqualValues(t, 2, replayed(named, 0).DriverAllocs)
	assert.EqualValues(t, 1, replayed(nil, 0).DriverAllocs, "the events do not tell")
	assert.EqualValues(t, 1, replayed(named, 2).DriverAllocs, "the pool's segment was there at the beginning")
	assert.EqualValues(t, 0, replayed(nil, 2).DriverAllocs)
}

// TestEndless empties its cache at each of many buffers, all of which live on.
func TestEndless(t *testing.T) {
	x, err := tables.Untyped("", 12*alloc.MiB)
	require.NoError(t, err)
	h := tables.HistoryTables{Stacks: new(tables.StackTable), Sections: []string{""}}
	for i := range 40_000 {
		p := alloc.Ptr(i+1) << 24
		h.Events = append(h.Events,
			tables.EventEntry{Action: mem.Allocated, Ptr: p, Allocated: x.Each, Tensor: &x},
			tables.EventEntry{Action: mem.SegmentFreed, Ptr: p, Allocated: x.Each})
	}
	lists := tables.Tables{Stacks: h.Stacks, Sections: h.Sections, Allocations: []tables.AllocationEntry{}}
	r := &snapshot.Dump{Snapshot: &snapshot.Snapshot{Events: uint64(len(h.Events)), Tables: tables.Wrap(lists)}, History: tables.WrapHistory(h)}
	_, err = replay.Run(r, replay.Config{})
	require.ErrorContains(t, err, "emptied over and over")
}

// look does all that can be done with a dump.
func look(t testing.TB, r *snapshot.Dump) {
	for _, a := range replay.Allocators() {
		for _, memory := range []alloc.Bytes{0, 64 * alloc.MiB} {
			if got, err := replay.Run(r, replay.Config{Allocator: a, Memory: memory}); err == nil {
				require.NotEmpty(t, got.String())
				require.LessOrEqual(t, got.Events, int64(len(tables.OfHistory(&r.History).Events)))
			}
		}
		if got, err := replay.Smallest(r, replay.Config{Allocator: a}); err == nil {
			require.LessOrEqual(t, got.Replays(), 20)
		}
	}
	if x, err := replay.Explain(r, "peak"); err == nil {
		require.NotEmpty(t, x.String())
	}
}

func TestHostile(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		text := make([]byte, random.IntN(400))
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		look(t, hostile(t, text))
	}
}

func FuzzRun(f *testing.F) {
	f.Add([]byte{1, 4, 1, 30, 2, 4, 1, 30, 7, 6, 1, 30})
	f.Fuzz(func(t *testing.T, text []byte) { look(t, hostile(t, text[:min(len(text), 4000)])) })
}

// BenchmarkRun replays a history of a training loop's kind. The goals are 25 ms for 20,000 events, and 1 s for
// 1,000,000.
func BenchmarkRun(b *testing.B) {
	for _, test := range []struct {
		name  string
		steps int
	}{{"20k", 15_000}, {"1M", 750_000}} {
		b.Run(test.name, func(b *testing.B) {
			p := newProgram(b, 1, 0, cache.Config{}, 1)
			for range test.steps {
				if p.alloc(p.size()); len(p.live) > 600 {
					p.free(p.random.IntN(len(p.live)))
				}
			}
			r := p.dump(len(p.events) / 4)
			b.ReportMetric(float64(len(tables.OfHistory(&r.History).Events)), "events")
			for b.Loop() {
				got, err := replay.Run(r, replay.Config{})
				require.NoError(b, err)
				require.True(b, got.Fits)
			}
		})
	}
}
