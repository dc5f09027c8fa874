package cache_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// TestDeviceNamesAreEscaped: a name comes from the driver, or from a file.
func TestDeviceNamesAreEscaped(t *testing.T) {
	dev := open(t, sim.Config{Name: "GPU\n\x1b[31m\xff", Memory: 4 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{})
	mustAlloc(t, c, 512)
	_, oom := c.Alloc(alloc.GiB)
	_, full := dev.Alloc(alloc.GiB)
	for _, err := range []error{oom, full, dev.Free(1), c.Free(1), c.Close(), &alloc.OutOfMemoryError{Device: dev.Name()}} {
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "\n")
		assert.NotContains(t, err.Error(), "\x1b")
		assert.True(t, utf8.ValidString(err.Error()), "%q", err)
	}
}
