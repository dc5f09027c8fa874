package trackertest

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Streams runs random programs that use streams as they should, through a tracker, against a model that
// knows which work uses which memory: nothing is handed out before its time, and at last
// everything can be. open opens a device of some 100 MiB, of whose streams the programs use these.
func Streams(t *testing.T, streams []alloc.Stream, open func(t require.TestingT) (dev cachetest.StreamDevice, closed func())) {
	rapid.Check(t, func(t *rapid.T) {
		dev, closed := open(t)
		defer closed()
		tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
		require.NoError(t, err)
		p := &streamProgram{t: t, tr: tr, dev: dev, uses: cachetest.NewUses(dev), streams: rapid.SampledFrom(streams)}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": p.alloc, "alloc again": p.alloc, "work": p.work, "work again": p.work,
			"free": p.free, "free again": p.free, "free on": p.freeOn,
			"time passes": func(t *rapid.T) { dev.Advance(time.Duration(rapid.IntRange(0, 60).Draw(t, "by"))) },
			"clear": func(t *rapid.T) {
				_, err := tr.ClearCache()
				require.NoError(t, err)
				require.Zero(t, tr.LightSnapshot().Pending)
			},
			"": p.check,
		})
		p.end(t)
	})
}

// streamProgram is a program that is running.
type streamProgram struct {
	t       *rapid.T
	tr      *tracker.MemTracker
	dev     cachetest.StreamDevice
	uses    *cachetest.Uses
	streams *rapid.Generator[alloc.Stream]
	live    []*tracker.Buffer
}

func (p *streamProgram) alloc(t *rapid.T) {
	on := p.streams.Draw(t, "stream")
	size := rapid.OneOf(rapid.IntRange(1, 2000), rapid.IntRange(1, 30<<20)).Draw(t, "size")
	b, err := p.tr.AllocOn(on, alloc.Shape{size}, alloc.Uint8, tracker.Activation)
	if err != nil {
		require.ErrorIs(t, err, alloc.ErrOutOfMemory)
		return
	}
	require.Equal(t, on, b.Allocation().Stream)
	p.uses.HandedOut(t, on, b.Ptr(), b.Allocation().Allocated)
	p.live = append(p.live, b)
}

func (p *streamProgram) pick(t *rapid.T) int {
	if len(p.live) == 0 {
		t.Skip("nothing is live")
	}
	return rapid.IntRange(0, len(p.live)-1).Draw(t, "buffer")
}

func (p *streamProgram) queue(t *rapid.T, b *tracker.Buffer) alloc.Stream {
	on := p.streams.Draw(t, "stream")
	p.uses.Queue(t, on, b.Ptr(), b.Bytes(), time.Duration(rapid.IntRange(0, 50).Draw(t, "takes")))
	return on
}

func (p *streamProgram) work(t *rapid.T) {
	b := p.live[p.pick(t)]
	require.NoError(t, b.RecordStream(p.queue(t, b)))
}

func (p *streamProgram) free(t *rapid.T) {
	i := p.pick(t)
	require.NoError(t, p.live[i].Free())
	p.live = slices.Delete(p.live, i, i+1)
}

func (p *streamProgram) freeOn(t *rapid.T) {
	i := p.pick(t)
	require.NoError(t, p.live[i].FreeOn(p.queue(t, p.live[i])))
	p.live = slices.Delete(p.live, i, i+1)
}

// check compares the snapshot's parts with each other, and what is live with the program.
func (p *streamProgram) check(t *rapid.T) {
	s := p.tr.Snapshot()
	var states [alloc.Pending + 1]alloc.Bytes
	for _, segment := range s.Segments {
		for _, b := range segment.Blocks {
			states[b.State] += b.Size
		}
	}
	require.EqualValues(t, len(p.live), s.Live.Count)
	require.Equal(t, s.Allocated, states[alloc.Allocated])
	require.Equal(t, s.Pending, states[alloc.Pending])
	require.Equal(t, s.Reserved, states[alloc.Allocated]+states[alloc.Pending]+states[alloc.Inactive])
	if dev, ok := alloc.As[interface{ Err() error }](p.dev); ok {
		require.NoError(t, dev.Err())
	}
}

// end frees all that is live: when all work is done, nothing is pending or kept.
func (p *streamProgram) end(t *rapid.T) {
	for _, b := range p.live {
		require.NoError(t, b.Free())
	}
	p.dev.Advance(max(0, p.uses.Last()-p.dev.Advance(0)))
	s := p.tr.Snapshot()
	require.Zero(t, s.Pending, "no block is kept for work that is done")
	require.Equal(t, s.Reserved, s.Cache.Inactive.Bytes.Current)
	freed, completed := 0, 0
	pending := make(map[alloc.Ptr]bool)
	for e := range p.tr.Dump().Events() {
		switch e.Action {
		case mem.Freed:
			freed++
			pending[e.Ptr] = true
		case mem.FreeCompleted:
			completed++
			require.True(t, pending[e.Ptr], "what is completed was freed: %v", e)
			delete(pending, e.Ptr)
		}
	}
	require.LessOrEqual(t, completed, freed)
	require.NoError(t, p.tr.Close())
}
