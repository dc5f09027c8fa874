package alloc_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
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
	} {
		assert.EqualError(t, err, want)
	}
	assert.ErrorIs(t, oom, alloc.ErrOutOfMemory)
	assert.ErrorIs(t, oom, cause)
	assert.NotErrorIs(t, oom, alloc.ErrClosed)
}

func TestUnknownIsNull(t *testing.T) {
	text, err := json.Marshal(&alloc.OutOfMemoryError{Device: "X 1", Requested: 1, Free: 2, Total: -1, Reserved: 0, Allocated: -1, LargestInactive: -1})
	require.NoError(t, err)
	assert.JSONEq(t, `{"device": "X 1", "requested_bytes": 1, "free_bytes": 2, "total_bytes": null, "reserved_bytes": 0,
		"allocated_bytes": null, "largest_inactive_bytes": null}`, string(text))
}

func TestNames(t *testing.T) {
	assert.Equal(t, "0x7f0000000200", alloc.Ptr(0x7f0000000200).String())
	assert.Equal(t, alloc.Bytes(3), alloc.MemInfo{Free: 4, Total: 7}.Used())
	assert.Equal(t, "inactive allocated unknown",
		alloc.Inactive.String()+" "+alloc.Allocated.String()+" "+alloc.BlockState(0).String())
}
