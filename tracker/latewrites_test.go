package tracker_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestLateWrites(t *testing.T) {
	dev := device(t, sim.Config{Backed: true})
	trackertest.LateWrites(t, trackertest.Writer{
		Device: dev, Streams: [2]alloc.Stream{1, 2}, Advance: func(by time.Duration) { dev.Advance(by) },
		Write: func(s alloc.Stream, p alloc.Ptr, n alloc.Bytes) error {
			return errors.Join(dev.Queue(s, p, n, time.Millisecond), dev.Fill(p, n, 1, s))
		},
	})
}

func TestLateWritesOfDevicesThatCannot(t *testing.T) {
	dev := device(t, sim.Config{Backed: true})
	for _, cfg := range []tracker.Config{
		{Device: counting.New(0)}, {Device: dev, NoCache: true}, {Device: cachetest.NewCache(t, dev, cache.Config{})},
	} {
		cfg.Report, cfg.FindLateWrites = io.Discard, true
		_, err := tracker.New(cfg)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
}

// TestLateWritesOnADeviceThatRefuses misses late writes, says so once, and hinders nobody.
func TestLateWritesOnADeviceThatRefuses(t *testing.T) {
	for _, op := range []string{"Fill", "Event", "Synchronize", "Copy"} {
		dev := device(t, sim.Config{Backed: true})
		var log bytes.Buffer
		tr, _ := open(t, tracker.Config{Device: dev, FindLateWrites: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		dev.Inject(sim.Fault{Call: op, Times: -1})
		for range 3 {
			b := takeOn(t, tr, 1, 512)
			queue(t, dev, 2, b, time.Second)
			require.NoError(t, b.FreeOn(2), "%v", op)
		}
		dev.Inject()
		require.NoError(t, tr.Close())
		assert.Equal(t, 1, strings.Count(log.String(), "late writes may be missed"), "%v", op)
	}
}

// TestLateWritesInPartsOfBlocks: pieces of freed memory are joined and split as the cache does.
func TestLateWritesInPartsOfBlocks(t *testing.T) {
	dev := device(t, sim.Config{Backed: true})
	tr, _ := open(t, tracker.Config{Device: dev, FindLateWrites: true, Logger: slog.New(slog.DiscardHandler)})
	var buffers []*tracker.Buffer
	for range 4 {
		buffers = append(buffers, takeOn(t, tr, 0, 1024))
	}
	first := buffers[0].Ptr()
	for _, b := range buffers {
		require.NoError(t, b.Free())
	}
	write := func(at alloc.Ptr) {
		require.NoError(t, dev.Fill(first+at, 1, 0, 1))
	}
	write(1023)
	write(1024)
	write(4095)
	takeOn(t, tr, 0, 512)
	assert.Empty(t, tr.LateWrites(), "the first 512 bytes")
	takeOn(t, tr, 0, 2048) // to 2560
	late := tr.LateWrites()
	require.Len(t, late, 2)
	assert.ErrorContains(t, late[0], fmt.Sprintf("work wrote to 1 B at %v on", first+1023))
	assert.ErrorContains(t, late[1], fmt.Sprintf("work wrote to 1 B at %v on", first+1024))
	require.Error(t, tr.Close())
	late = tr.LateWrites()
	require.Len(t, late, 3)
	assert.ErrorContains(t, late[2], fmt.Sprintf(" at %v on", first+4095))
}

// TestLateWritesAfterGivingBack: memory that the driver has had back is new memory.
func TestLateWritesAfterGivingBack(t *testing.T) {
	dev := device(t, sim.Config{Backed: true})
	tr, _ := open(t, tracker.Config{Device: dev, FindLateWrites: true})
	p := takeOn(t, tr, 0, alloc.MiB)
	require.NoError(t, p.Free())
	_, err := tr.ClearCache()
	require.NoError(t, err)
	assert.Equal(t, p.Ptr(), takeOn(t, tr, 0, alloc.MiB).Ptr())
	assert.Empty(t, tr.LateWrites())
	require.NoError(t, tr.Close())
}

// TestLateWritesBesideEachOther frees each buffer twice, at the same time.
func TestLateWritesBesideEachOther(t *testing.T) {
	dev := device(t, sim.Config{Backed: true})
	tr, _ := open(t, tracker.Config{Device: dev, FindLateWrites: true})
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 100 {
				b, err := tr.AllocBytes(alloc.Bytes(1+(i*g*700)%5000), tracker.Temporary)
				if !assert.NoError(t, err) || !assert.NoError(t, tracker.CopyIn(b, make([]byte, b.Bytes()))) {
					return
				}
				errs := make(chan error, 2)
				for range 2 {
					go func() { errs <- b.Free() }()
				}
				one, two := <-errs, <-errs
				if one == nil {
					one, two = two, one
				}
				assert.ErrorIs(t, one, alloc.ErrDoubleFree)
				assert.NoError(t, two)
			}
		})
	}
	group.Wait()
	assert.NoError(t, tr.Close())
}
