package alloc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/alloctest"
)

// TestReuseIsAnError is a program that forgets RecordStream. It is here because the packages below
// this one are no user's lines to the simulated device.
func TestReuseIsAnError(t *testing.T) {
	dev, err := sim.New(sim.Config{CheckReuse: true})
	require.NoError(t, err)
	c := alloctest.NewCache(t, dev, cache.Config{})
	allocate := func(n alloc.Bytes) alloc.Ptr {
		p, _, err := c.AllocOn(n, 1)
		require.NoError(t, err)
		return p
	}
	p := allocate(alloc.MiB)
	require.NoError(t, dev.Queue(sim.Work{Stream: 1, Ptr: p, Size: 512, Time: time.Second}))
	require.NoError(t, c.Free(p))
	require.Equal(t, p, allocate(512), "behind the work on its own stream")
	require.NoError(t, dev.Err())

	require.NoError(t, dev.Queue(sim.Work{Stream: 2, Ptr: p + 100, Size: 1, Time: 3 * time.Second}))
	require.NoError(t, c.Free(p))
	dev.Advance(time.Second)
	require.Equal(t, p, allocate(512))
	var reused *sim.ReuseError
	require.ErrorAs(t, dev.Err(), &reused)
	assert.Equal(t, p, reused.Ptr)
	assert.Equal(t, alloc.Stream(1), reused.Stream)
	assert.Equal(t, alloc.Stream(2), reused.Work.Stream)
	assert.Equal(t, 2*time.Second, reused.Left)
	assert.Regexp(t, `func1 reuse_test\.go:\d+`, reused.HandedOut)
	assert.Regexp(t, `TestReuseIsAnError reuse_test\.go:\d+`, reused.Queued)
	assert.ErrorContains(t, reused, "call RecordStream before Free")
	assert.Equal(t, dev.Err(), dev.Synchronize())
}
