package recordings_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/recordings"
)

// TestOwnHistories replays histories that this test makes: programs that look
// like training, run by the naive allocator on a device that is a little too small
// for them. So every machine replays some.
func TestOwnHistories(t *testing.T) {
	for _, conf := range []string{
		"",
		"expandable_segments:True",
		"max_split_size_mb:20",
		"roundup_power2_divisions:4",
		"garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
	} {
		name := "own-" + strings.NewReplacer(":", "-", ",", "-").Replace(conf)
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for seed := range uint64(4) {
				h := newHistory(t, conf, seed)
				h.train(6)
				part := &recordings.Part{After: h.segments(), Events: h.events}
				cfg := recordings.Config{Total: memory, Retries: true}
				recording := &recordings.Recording{Conf: conf}
				fmt.Fprintf(&got, "seed %d: %d events, %s\n", seed, len(h.events), replay(t, recording, part, cfg))
			}
			golden(t, name, got.String())
		})
	}
}

// TestOwnStreams replays programs on four streams that use each other's blocks.
func TestOwnStreams(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		name := "own-streams-" + strings.NewReplacer(":", "-").Replace(conf)
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for seed := range uint64(4) {
				h := newHistory(t, conf, seed)
				h.streams = 4
				h.train(6)
				part := &recordings.Part{After: h.segments(), Events: h.events}
				cfg := recordings.Config{Total: memory, Retries: true}
				recording := &recordings.Recording{Conf: conf}
				fmt.Fprintf(&got, "seed %d: %d events, %d blocks pending for a while, %s\n",
					seed, len(h.events), h.suspended, replay(t, recording, part, cfg))
			}
			golden(t, name, got.String())
		})
	}
}

// TestBefore cuts histories at random places: the state there is rebuilt from the
// end, and what follows is replayed from it.
func TestBefore(t *testing.T) {
	for seed := range uint64(20) {
		h := newHistory(t, "", seed)
		h.exact = true // sizes that leave nothing of a block unused, which nothing tells
		random := rand.New(rand.NewPCG(seed, 3))
		type cut struct {
			at     int
			before []recordings.Segment
		}
		var cuts []cut
		for range 4 {
			h.train(1)
			cuts = append(cuts, cut{len(h.events), h.segments()})
			for range random.IntN(50) {
				h.step()
			}
			cuts = append(cuts, cut{len(h.events), h.segments()})
		}
		after := h.segments()
		for _, cut := range cuts {
			events := h.events[cut.at:]
			require.Equal(t, cut.before, recordings.Before(after, events))
			cache, _, err := recordings.Replay(recordings.Config{Retries: true}, cut.before, events)
			require.NoError(t, err, "seed %d, cut at %d", seed, cut.at)
			require.Equal(t, after, recordings.Held(cache, [2]int64{}))
		}
	}
}

const memory = 448 * alloc.MiB

// history is a program and what the naive allocator did for it, as a recording.
type history struct {
	t      *testing.T
	random *rand.Rand
	naive  *cachetest.Naive
	events []recordings.Event
	live   []recordings.Event // the allocs that are live
	exact  bool

	gpu       cachetest.Device
	streams   int                            // more than one: with work on all of them
	freed     map[alloc.Ptr]recordings.Event // those asked to be free that are not
	suspended int
}

func newHistory(t *testing.T, conf string, seed uint64) *history {
	cfg, err := cache.ParseConfig(conf)
	require.NoError(t, err)
	gpu, err := cachetest.NewDevice(sim.Config{})
	require.NoError(t, err)
	h := &history{t: t, random: rand.New(rand.NewPCG(seed, 4)), gpu: gpu, streams: 1, freed: make(map[alloc.Ptr]recordings.Event)}
	dev := &recorder{Device: counting.New(memory), history: h, sizes: make(map[alloc.Ptr]alloc.Bytes)}
	h.naive = cachetest.NewNaive(dev, cfg)
	h.naive.Finished = func(p alloc.Ptr) {
		e := h.freed[p]
		delete(h.freed, p)
		e.Action = "free_completed"
		h.events = append(h.events, e)
	}
	return h
}

func (h *history) add(action string, p alloc.Ptr, n alloc.Bytes, on alloc.Stream) {
	h.events = append(h.events, recordings.Event{Action: action, Ptr: p, Size: n, Stream: int64(on)})
}

// train runs some steps of a network: activations forward, which the backward
// pass frees in the opposite order with temporaries between them; sizes change from step to step.
func (h *history) train(steps int) {
	for range steps {
		h.alloc(1)
		base := len(h.live)
		batch := 1 + h.random.IntN(4)
		for layer := range 12 {
			h.alloc(alloc.Bytes(batch*(layer+1)) * 300 * alloc.KiB)
			h.alloc(alloc.Bytes(batch) * 5000)
			h.alloc(alloc.Bytes(batch*batch) * 2 * alloc.MiB)
		}
		for len(h.live) > base {
			h.alloc(alloc.Bytes(h.random.IntN(8)) * 700 * alloc.KiB)
			h.free(len(h.live) - 1)
			h.free(len(h.live) - 1)
		}
		h.naive.Trim()
		h.free(base - 1) // so that a request does not seem to have given it back
	}
}

// step allocates or frees something at random.
func (h *history) step() {
	if h.random.IntN(2) == 0 && len(h.live) > 0 {
		h.free(h.random.IntN(len(h.live)))
	} else {
		h.alloc(alloc.Bytes(h.random.IntN(24)) * 500 * alloc.KiB)
	}
}

func (h *history) alloc(n alloc.Bytes) {
	if h.exact && n > alloc.MiB {
		n = n / (2 * alloc.MiB) * 2 * alloc.MiB
	}
	on := alloc.Stream(0)
	if h.streams > 1 {
		on = alloc.Stream(h.random.IntN(h.streams))
	}
	p, err := h.naive.AllocOn(n, on)
	if err != nil {
		h.add("oom", 0, n, on)
		return
	}
	h.add("alloc", p, n, on)
	h.live = append(h.live, h.events[len(h.events)-1])
	if h.streams > 1 && h.random.IntN(3) == 0 {
		h.work(p)
	}
}

// work has another stream use a block for a while.
func (h *history) work(p alloc.Ptr) {
	on := alloc.Stream(h.random.IntN(h.streams))
	require.NoError(h.t, h.gpu.Queue(on, 0, 0, time.Duration(h.random.IntN(12))))
	h.naive.RecordStream(p, on)
	h.gpu.Advance(time.Duration(h.random.IntN(3)))
}

func (h *history) free(i int) {
	if i < 0 {
		return
	}
	e := h.live[i]
	h.live = slices.Delete(h.live, i, i+1)
	e.Action = "free_requested"
	h.events = append(h.events, e)
	h.freed[e.Ptr] = e
	require.NoError(h.t, h.naive.Free(e.Ptr))
	if _, pending := h.freed[e.Ptr]; pending {
		h.suspended++
	}
}

// segments returns the state of this moment.
func (h *history) segments() (segments []recordings.Segment) {
	for _, s := range h.naive.Segments() {
		segment := recordings.Segment{Ptr: s.Ptr, Size: s.Size, Small: s.Small, Stream: int64(s.Stream)}
		for _, b := range s.Blocks {
			segment.Blocks = append(segment.Blocks, recordings.Block{
				Ptr: b.Ptr, Size: b.Size, Requested: b.Requested, Allocated: b.State != alloc.Inactive, Pending: b.State == alloc.Pending,
			})
		}
		segments = append(segments, segment)
	}
	return segments
}

// recorder enters the driver's calls into a history.
type recorder struct {
	*counting.Device
	history *history
	sizes   map[alloc.Ptr]alloc.Bytes
}

func (r *recorder) RecordEvent(on alloc.Stream) (capability.Event, error) {
	return r.history.gpu.RecordEvent(on)
}

func (r *recorder) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	p, err := r.Device.Alloc(n)
	if err == nil {
		r.sizes[p] = n
		r.history.add("segment_alloc", p, n, 0)
	}
	return p, err
}

func (r *recorder) Free(p alloc.Ptr) error {
	r.history.add("segment_free", p, r.sizes[p], 0)
	return r.Device.Free(p)
}

func (r *recorder) Map(p alloc.Ptr, n alloc.Bytes) error {
	err := r.Device.Map(p, n)
	if err == nil {
		r.history.add("segment_map", p, n, 0)
	}
	return err
}

func (r *recorder) Unmap(p alloc.Ptr, n alloc.Bytes) error {
	r.history.add("segment_unmap", p, n, 0)
	return r.Device.Unmap(p, n)
}
