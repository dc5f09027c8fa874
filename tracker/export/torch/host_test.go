package torch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

const pinned = `"host_traces": [
	{"action": "segment_alloc", "addr": 9000, "size": 4096, "stream": 0, "time_us": 11, "frames": []},
	{"action": "alloc", "addr": 9000, "size": 4096, "stream": 0, "time_us": 11, "frames": [{"name": "pin", "filename": "/src/loader.py", "line": 3}]},
	{"action": "alloc", "addr": 99000, "size": 8192, "stream": 0, "time_us": 12, "frames": [{"name": "pin", "filename": "/src/loader.py", "line": 3}]},
	{"action": "free_requested", "addr": 99000, "size": 8192, "stream": 0, "time_us": 14, "frames": []},
	{"action": "free_completed", "addr": 99000, "size": 8192, "stream": 0, "time_us": 14, "frames": []},
	{"action": "segment_free", "addr": 99000, "size": 8192, "stream": 0, "time_us": 15, "frames": []}]`

// TestPinnedMemory reads what PyTorch's host allocator wrote. It counts in no total of a device.
func TestPinnedMemory(t *testing.T) {
	frames := `"frames": [{"name": "pin", "filename": "/src/loader.py", "line": 3}]`
	for name, segments := range map[string]string{
		"each its own block": `{"address": 9000, "total_size": 4096, "state": "active_allocated", ` + frames + `}, {"address": 50000, "total_size": 512, "state": "inactive"}`,
		"a list of blocks": `{"device": -1, "address": 9000, "total_size": 4096, "blocks": [{"address": 9000, "size": 4096, "state": "active_allocated", ` + frames + `}]},
			{"device": -1, "address": 50000, "total_size": 512, "blocks": [{"address": 50000, "size": 512, "state": "inactive"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := read(strings.NewReader(`{"segments": [{"device": 1, "address": 1048576, "total_size": 2097152, "stream": 0, "segment_type": "small",
				"blocks": [{"size": 512, "state": "active_allocated"}, {"size": 2096640, "state": "inactive"}]}],
				"device_traces": [[], [
					{"action": "segment_alloc", "addr": 1048576, "size": 2097152, "stream": 0, "time_us": 10},
					{"action": "alloc", "addr": 1048576, "size": 512, "stream": 0, "time_us": 13}]],
				"host_segments": [` + segments + `], ` + pinned + `}`))
			require.NoError(t, err)
			s := c.Dump.Snapshot
			assert.Equal(t, 1, s.Ordinal)
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 512}, s.Live)
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 512}, s.Peak)
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 512}, s.Total)
			assert.Equal(t, alloc.Bytes(512), s.Allocated)
			assert.Equal(t, alloc.Bytes(2<<20), s.Reserved)
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 4096}, s.Host())
			assert.Equal(t, alloc.Bytes(4096), s.HostReserved)

			require.Len(t, c.Usage.Rows, 1)
			require.Len(t, c.Usage.Host, 2, "of two sizes")
			var row export.Row
			for _, its := range c.Usage.Host {
				assert.Equal(t, "pinned", its.Memory)
				assert.Equal(t, "loader.py:3 pin", its.CallSite.String())
				row.Live, row.Peak, row.Total = row.Live.Add(its.Live), row.Peak.Add(its.Peak), row.Total.Add(its.Total)
			}
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 4096}, row.Live)
			assert.Equal(t, mem.Tally{Count: 2, Bytes: 12288}, row.Peak)
			assert.Equal(t, mem.Tally{Count: 2, Bytes: 12288}, row.Total)

			var events []string
			for e := range c.Dump.Events() {
				events = append(events, fmt.Sprint(e.Action, " ", e.Memory))
			}
			assert.Equal(t, []string{"segment_alloc unknown", "alloc pinned", "alloc pinned", "alloc unknown", "free pinned"}, events)
		})
	}
}

// TestPinnedMemoryAlone is of a program that recorded nothing else.
func TestPinnedMemoryAlone(t *testing.T) {
	c, err := read(strings.NewReader(`{"segments": [], "device_traces": [], "host_segments": [], ` + pinned + `}`))
	require.NoError(t, err)
	assert.Equal(t, mem.Tally{}, c.Dump.Snapshot.Total)
	lines, sum := export.Compare(nil, []*export.Usage{{Rows: c.Usage.Host}}, "size", "total")
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 12288}, sum.After)
	require.Len(t, lines, 2)
	assert.Equal(t, "8.0 KiB to 16.0 KiB", lines[0].Key, "not the mean of what the line allocated")
	assert.Equal(t, "4.0 KiB to 8.0 KiB", lines[1].Key)
}

func TestPinnedMemoryThatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		`[{"total_size": 1, "state": "active_allocated"}]`:                "host segment 0: there is no address",
		`[{"address": 1, "state": "active_allocated"}]`:                   "host segment 0: there is no total_size",
		`[{"address": 1, "total_size": -1, "state": "active_allocated"}]`: "host segment 0: size is -1",
		`[7]`: "host_segments[0] is an integer, want a dict",
	} {
		_, err := read(strings.NewReader(`{"segments": [], "device_traces": [], "host_segments": ` + text + `}`))
		assert.ErrorContains(t, err, want)
	}
}
