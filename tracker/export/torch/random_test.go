package torch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// story is a random history as PyTorch records it, and what a reader must know of it.
type story struct {
	*rand.Rand
	events []map[string]any
	clock  int64
	now    int64 // the latest time of an event that is read

	live   map[int64]*storyBuffer // by address
	want   []seen
	failed bool // the last request was
}

// storyBuffer is a live buffer of a story.
type storyBuffer struct {
	addr, size int64
	label      string
	compile    string
}

// seen is an event as it must be read.
type seen struct {
	action mem.Action
	ptr    int64
	size   alloc.Bytes
	micros int64
}

const slots, slotSize = 12, int64(4096) // addresses of buffers, one page each

// at returns the time of the next event. The clock runs back now and then; what is read never does.
func (s *story) at() int64 {
	s.clock += int64(s.IntN(20)) - 5
	return s.clock
}

func (s *story) add(action string, addr, size int64, more map[string]any) {
	at := s.at()
	e := map[string]any{"action": action, "addr": addr, "size": size, "stream": 0, "time_us": at}
	maps.Copy(e, more)
	s.events = append(s.events, e)
}

// see notes how the event added last is read.
func (s *story) see(action mem.Action, addr int64, size alloc.Bytes) {
	s.pass()
	s.want = append(s.want, seen{action, addr, size, s.now})
}

// pass moves the time that is read on to that of the event added last.
func (s *story) pass() { s.now = max(s.now, s.events[len(s.events)-1]["time_us"].(int64)) }

func (s *story) step() {
	addr := (1 << 20) + slotSize*int64(s.IntN(slots))
	b := s.live[addr]
	switch n := s.IntN(12); {
	case b == nil && n < 8, b != nil && n == 0: // a buffer whose free is not in the file is taken over
		b = &storyBuffer{addr: addr, size: 1 + int64(s.IntN(3000))}
		more := make(map[string]any)
		if s.IntN(2) == 0 {
			b.label = []string{"weights", "grads", "x"}[s.IntN(3)]
			more["user_metadata"] = b.label
		}
		if s.IntN(2) == 0 {
			b.compile = []string{"0/0", "1/0", "N/A"}[s.IntN(3)]
			more["compile_context"] = b.compile
		}
		s.add("alloc", addr, b.size, more)
		s.see(mem.Allocated, addr, rounded(b.size))
		s.live[addr] = b
		s.failed = false
	case b != nil && n < 3: // since 2.14
		b.label = "noted"
		s.add("annotate", addr, 0, map[string]any{"user_metadata": b.label})
		s.pass()
	case b != nil && n < 8:
		s.free(b)
	case b == nil && n == 10: // a buffer whose alloc is not in the file
		size := 1 + int64(s.IntN(3000))
		s.add("free_completed", addr, size, nil)
		s.see(mem.Freed, addr, rounded(size))
	case n == 8:
		s.add("oom", 0, 1<<40, map[string]any{"device_free": 1})
		s.see(mem.OutOfMemory, 0, 0)
		s.failed = true
	case n == 9:
		s.add("segment_alloc", 1<<30, 2<<20, nil)
		s.see(mem.SegmentAllocated, 1<<30, 2<<20)
		s.add("segment_free", 1<<30, 2<<20, nil)
		s.see(mem.SegmentFreed, 1<<30, 2<<20)
	}
}

// free frees a buffer: its request and completion are one event if nothing is between them.
func (s *story) free(b *storyBuffer) {
	size := rounded(b.size)
	s.add("free_requested", b.addr, b.size, nil)
	if s.IntN(2) == 0 {
		s.see(mem.FreeRequested, b.addr, size)
		s.add("segment_alloc", 1<<31, 2<<20, nil)
		s.see(mem.SegmentAllocated, 1<<31, 2<<20)
		s.add("segment_free", 1<<31, 2<<20, nil)
		s.see(mem.SegmentFreed, 1<<31, 2<<20)
	}
	s.add("free_completed", b.addr, b.size, nil)
	s.see(mem.Freed, b.addr, size)
	delete(s.live, b.addr)
}

func rounded(n int64) alloc.Bytes { return alloc.Bytes((n + 511) / 512 * 512) }

// file writes the story as JSON, which the reader takes too.
func (s *story) file(t *testing.T) string {
	blocks := make([]map[string]any, 0, slots)
	for i := range int64(slots) {
		addr := (1 << 20) + slotSize*i
		rest := slotSize
		if b := s.live[addr]; b != nil {
			size := int64(rounded(b.size))
			blocks = append(blocks, map[string]any{"address": addr, "size": size, "requested_size": b.size, "state": "active_allocated"})
			addr, rest = addr+size, rest-size
		}
		if rest > 0 {
			blocks = append(blocks, map[string]any{"address": addr, "size": rest, "state": "inactive"})
		}
	}
	text, err := json.Marshal(map[string]any{
		"segments":      []any{map[string]any{"device": 0, "address": 1 << 20, "total_size": slots * slotSize, "stream": 0, "segment_type": "small", "blocks": blocks}},
		"device_traces": []any{s.events},
	})
	require.NoError(t, err)
	return string(text)
}

// label is what is read of what the program said of a buffer.
func (b *storyBuffer) text() string {
	var parts []string
	if b.label != "" {
		parts = append(parts, b.label)
	}
	if b.compile != "" && b.compile != "N/A" {
		parts = append(parts, "compile_context="+b.compile)
	}
	return strings.Join(parts, ", ")
}

// check holds a dump against the story.
func (s *story) check(t *testing.T, d *snapshot.Dump, seed uint64) {
	var events []seen
	for e := range d.Events() {
		events = append(events, seen{e.Action, int64(e.Ptr), e.Allocated, e.Time.UnixMicro()})
	}
	require.Equal(t, s.want, events, "seed %d", seed)
	var want, got []storyBuffer
	for _, b := range s.live {
		want = append(want, storyBuffer{addr: b.addr, size: b.size, label: b.text()})
	}
	for a := range d.Snapshot.Allocations() {
		got = append(got, storyBuffer{addr: int64(a.Ptr), size: int64(a.Requested), label: a.Label})
	}
	byAddress := func(x, y storyBuffer) int { return cmp.Compare(x.addr, y.addr) }
	slices.SortFunc(want, byAddress)
	slices.SortFunc(got, byAddress)
	require.Equal(t, want, got, "seed %d", seed)
	require.Equal(t, s.failed, d.OOM != nil, "seed %d: an error after which the program went on is not the end", seed)
}

// TestRandomHistoriesAreRead as they were recorded: each event with a time that never runs back, each buffer with what was said
// of it and not of one at its address before, and an error only if nothing was allocated after it.
func TestRandomHistoriesAreRead(t *testing.T) {
	for seed := range uint64(60) {
		s := &story{Rand: rand.New(rand.NewPCG(seed, 1)), clock: 1_000_000, live: make(map[int64]*storyBuffer)}
		for range 80 {
			s.step()
		}
		if len(s.want) == 0 {
			continue
		}
		c, err := read(strings.NewReader(s.file(t)))
		require.NoError(t, err)
		s.check(t, c.Dump, seed)
		for _, d := range []*snapshot.Dump{c.Dump} { // what is written is the same history
			var b bytes.Buffer
			require.NoError(t, Write(&b, d))
			again, err := read(&b)
			require.NoError(t, err)
			require.Equal(t, d.Snapshot.Live, again.Dump.Snapshot.Live, "seed %d", seed)
			require.Equal(t, d.Snapshot.Peak, again.Dump.Snapshot.Peak, "seed %d", seed)
			require.Equal(t, labelsOf(d), labelsOf(again.Dump), "seed %d", seed)
		}
	}
}

// labelsOf returns the labels of the live buffers by address.
func labelsOf(d *snapshot.Dump) map[alloc.Ptr]string {
	all := make(map[alloc.Ptr]string)
	for a := range d.Snapshot.Allocations() {
		all[a.Ptr] = a.Label
	}
	return all
}
