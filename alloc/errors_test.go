package alloc_test

import (
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

func TestErrorMessages(t *testing.T) {
	cause := errors.New("CUDA error 2")
	oom := &alloc.OutOfMemoryError{
		Device: "Simulated GPU 0", Requested: 3 * alloc.GiB, Free: alloc.GiB, Total: 24 * alloc.GiB,
		Reserved: 20 * alloc.GiB, Allocated: 19 * alloc.GiB, LargestInactive: 16 * alloc.MiB, Err: cause,
	}
	for want, err := range map[string]error{
		"alloc 3.0 GiB on Simulated GPU 0: out of device memory: free 1.0 GiB, total 24.0 GiB, reserved 20.0 GiB, " +
			"allocated 19.0 GiB, largest inactive block 16.0 MiB": oom,
		"alloc 1 B on X 1: out of device memory: free 2 B": &alloc.OutOfMemoryError{
			Device: "X 1", Requested: 1, Free: 2, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1},
		"alloc 1 B on X 1: out of device memory": &alloc.OutOfMemoryError{
			Device: "X 1", Requested: 1, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1},
		"shape (2, -1): dimension 1 is negative": &alloc.ShapeError{Shape: alloc.Shape{2, -1}, Reason: "dimension 1 is negative"},
		"alloc -5 bytes: negative":               &alloc.SizeError{Requested: -5, Reason: "negative"},
		"close cache on X 1: blocks still in use: 2, of 1.0 KiB together: free them first": &alloc.InUseError{
			Device: "X 1", Blocks: 2, Bytes: 1024},
	} {
		assert.EqualError(t, err, want)
	}
	assert.ErrorIs(t, oom, alloc.ErrOutOfMemory)
	assert.ErrorIs(t, oom, cause)
	assert.NotErrorIs(t, oom, alloc.ErrClosed)
}

func TestNames(t *testing.T) {
	assert.Equal(t, "0x7f0000000200", alloc.Ptr(0x7f0000000200).String())
	assert.Equal(t, alloc.Bytes(3), alloc.MemInfo{Free: 4, Total: 7}.Used())
	assert.Equal(t, "small large unknown", alloc.SmallPool.String()+" "+alloc.LargePool.String()+" "+alloc.Pool(0).String())
	assert.Equal(t, "inactive allocated unknown",
		alloc.Inactive.String()+" "+alloc.Allocated.String()+" "+alloc.BlockState(0).String())
	assert.Equal(t, "SegmentAction(0)", alloc.SegmentAction(0).String())
	assert.Equal(t, "SegmentAction(9)", alloc.SegmentAction(9).String())
}

func TestSegmentJSON(t *testing.T) {
	cache, _ := newCache(t, sim.Config{})
	mustAlloc(t, cache, 100)
	mustAlloc(t, cache, 3*alloc.MiB)
	for segment := range cache.Segments() {
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
	cache := alloc.NewCache(dev, alloc.CacheConfig{})
	mustAlloc(t, cache, 512)
	_, oom := cache.Alloc(alloc.GiB)
	_, full := dev.Alloc(alloc.GiB)
	for _, err := range []error{oom, full, dev.Free(1), cache.Free(1), cache.Close(), &alloc.OutOfMemoryError{Device: dev.Name()}, &alloc.InUseError{Device: dev.Name()}} {
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "\n")
		assert.NotContains(t, err.Error(), "\x1b")
		assert.True(t, utf8.ValidString(err.Error()), "%q", err)
	}
}
