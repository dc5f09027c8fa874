package alloc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// TestReuseIsAnError is a program that forgets RecordStream. It is here because the packages below
// this one are no user's lines to the simulated device.
func TestReuseIsAnError(t *testing.T) {
	dev, err := cachetest.NewDevice(sim.Config{CheckReuse: true})
	require.NoError(t, err)
	c := cachetest.NewCache(t, dev, cache.Config{})
	allocate := func(n alloc.Bytes) alloc.Ptr {
		p, _, err := c.AllocOn(n, 1)
		require.NoError(t, err)
		return p
	}
	p := allocate(alloc.MiB)
	require.NoError(t, dev.Queue(1, p, 512, time.Second))
	require.NoError(t, c.Free(p))
	require.Equal(t, p, allocate(512), "behind the work on its own stream")
	require.NoError(t, dev.Err())

	require.NoError(t, dev.Queue(2, p+100, 1, 3*time.Second))
	require.NoError(t, c.Free(p))
	dev.Advance(time.Second)
	require.Equal(t, p, allocate(512))
	assert.Regexp(t, fmt.Sprintf(`^512 B at %v on Simulated GPU 0 was handed out for stream 0x1 \(alloc_test\.TestReuseIsAnError\.func1 reuse_test\.go:\d+\), `+
		`while work on stream 0x2 uses 1 B at %v for another 2s \(alloc_test\.TestReuseIsAnError reuse_test\.go:\d+\)`, p, p+100), dev.Err())
	assert.ErrorContains(t, dev.Err(), "call RecordStream before Free")
	assert.Equal(t, dev.Err(), dev.Synchronize())
}
