package cache_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/alloctest"
)

func TestSegmentJSON(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	mustAlloc(t, c, 100)
	mustAlloc(t, c, 3*alloc.MiB)
	for segment := range c.Segments() {
		text, err := json.Marshal(segment)
		require.NoError(t, err)
		var got alloc.Segment
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Equal(t, segment.Size, got.Size)
		assert.Equal(t, segment.Pool, got.Pool)
		assert.Equal(t, segment.Blocks, got.Blocks)
	}
	for name, text := range map[string]string{
		"a hole":       `{"address":512,"bytes":1024,"pool":"small","blocks":[{"address":1024,"bytes":512,"state":"inactive"}]}`,
		"too short":    `{"address":512,"bytes":1024,"pool":"small","blocks":[{"address":512,"bytes":512,"state":"inactive"}]}`,
		"no pool":      `{"address":512,"bytes":0,"pool":"medium","blocks":[]}`,
		"no state":     `{"address":512,"bytes":512,"pool":"small","blocks":[{"address":512,"bytes":512,"state":"gone"}]}`,
		"no such size": `{"address":512,"bytes":0,"pool":"small","blocks":[{"address":512,"bytes":-512,"state":"inactive"}]}`,
		"negative":     `{"address":512,"bytes":-512,"pool":"small","blocks":[]}`,
		"past 2^64":    `{"address":18446744073709551104,"bytes":1024,"pool":"small","blocks":[{"address":18446744073709551104,"bytes":512,"state":"inactive"},{"address":0,"bytes":512,"state":"inactive"}]}`,
	} {
		assert.Error(t, json.Unmarshal([]byte(text), new(alloc.Segment)), name)
	}
}

// TestDeviceNamesAreEscaped: a name comes from the driver, or from a file.
func TestDeviceNamesAreEscaped(t *testing.T) {
	dev := open(t, sim.Config{Name: "GPU\n\x1b[31m\xff", Memory: 4 * alloc.MiB, Overhead: -1})
	c := alloctest.NewCache(t, dev, cache.Config{})
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
