package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// pooled is a recording with a segment of 20 MiB, of which 2 MiB were in use at the beginning, and
// one in which 10 MiB were allocated at the address.
func pooled(t *testing.T, pool string, at int) *snapshot.Dump {
	t.Helper()
	const mib = 1 << 20
	second, mapped := "", ""
	blocks := fmt.Sprintf(`{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"},`, mib, 2*mib, 2*mib)
	if at == 3*mib {
		blocks += fmt.Sprintf(`{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"},{"address":%d,"size":%d,"state":"inactive"}`, at, 10*mib, 10*mib, 13*mib, 8*mib)
	} else {
		blocks += fmt.Sprintf(`{"address":%d,"size":%d,"state":"inactive"}`, 3*mib, 18*mib)
		mapped = fmt.Sprintf(`{"action":"segment_alloc","addr":%d,"size":%d,"stream":0},`, at, 20*mib)
		second = fmt.Sprintf(`,{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":[0,0],"blocks":[{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"},{"address":%d,"size":%d,"state":"inactive"}]}`,
			at, 20*mib, at, 10*mib, 10*mib, at+10*mib, 10*mib)
	}
	text := fmt.Sprintf(`{"segments":[{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":%s,"blocks":[%s]}%s],
"device_traces":[[%s{"action":"alloc","addr":%d,"size":%d,"stream":0}]]}`, mib, 20*mib, pool, blocks, second, mapped, at, 10*mib)
	d, _, err := torch.Read(strings.NewReader(text))
	require.NoError(t, err)
	return d
}

func TestPrivatePoolsAreApart(t *testing.T) {
	const far = 1 << 30
	for _, test := range []struct {
		name, pool string
		at         int
		memory     alloc.Bytes
		fits       bool
	}{
		{"a request of the default pool gets its own hole", "[0,0]", far, 29 * alloc.MiB, true},
		{"and none of a private pool", "[0,1]", far, 29 * alloc.MiB, false},
		{"but memory of the driver's", "[0,1]", far, 30 * alloc.MiB, true},
		{"a request of a private pool gets its own hole", "[0,1]", 3 << 20, 20 * alloc.MiB, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := replay.Run(pooled(t, test.pool, test.at), replay.Config{Allocator: "cache", Memory: test.memory})
			require.NoError(t, err)
			assert.Equal(t, "as recorded", got.Layout())
			assert.Equal(t, test.fits, got.Fits, "%v", got)
		})
	}
}

// TestPrivatePoolsAreNotEmptied has a segment whose only buffer is freed before the default pool asks for more than
// the device has left. A private pool keeps it, since a graph will use its addresses again.
func TestPrivatePoolsAreNotEmptied(t *testing.T) {
	const mib = 1 << 20
	for pool, fits := range map[string]bool{"[0,0]": true, "[0,1]": false} {
		text := fmt.Sprintf(`{"segments":[
{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":%s,"blocks":[{"address":%d,"size":%d,"state":"inactive"}]},
{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":[0,0],"blocks":[{"address":%d,"size":%d,"requested_size":%d,"state":"active_allocated"}]}],
"device_traces":[[{"action":"free_completed","addr":%d,"size":%d,"stream":0},
{"action":"segment_alloc","addr":%d,"size":%d,"stream":0},{"action":"alloc","addr":%d,"size":%d,"stream":0}]]}`,
			mib, 20*mib, pool, mib, 20*mib,
			64*mib, 30*mib, 64*mib, 30*mib, 30*mib,
			mib, 20*mib, 64*mib, 30*mib, 64*mib, 30*mib)
		d, _, err := torch.Read(strings.NewReader(text))
		require.NoError(t, err)
		got, err := replay.Run(d, replay.Config{Memory: 40 * alloc.MiB})
		require.NoError(t, err)
		assert.Equal(t, fits, got.Fits, "pool %s: %v", pool, got)
		if !fits {
			assert.Zero(t, got.OOM().LargestInactive, "the request's own pool has nothing")
		}
	}
}

func TestPrivatePoolsAreNotReleased(t *testing.T) {
	x := explain.Snapshot(pooled(t, "[0,1]", 1<<30).Snapshot)
	assert.Equal(t, 28*alloc.MiB, x.Pinned, "18 in the private pool, 10 beside a buffer")
	assert.Contains(t, x.String(), "pinned between buffers or in private pools")
	assert.Contains(t, x.String(), "in private pool 0,1, 18.0 MiB inactive, is pinned by one buffer")
	_, largest := x.Find(2 * alloc.MiB)
	assert.Equal(t, 10*alloc.MiB, largest, "no request of the default pool gets more")
}

// TestSegmentsThatDoNotTile: the recorded allocator has a cache, even if none of its segments could be read.
func TestSegmentsThatDoNotTile(t *testing.T) {
	d, _, err := torch.Read(strings.NewReader(`{"segments": [{"device": 0, "address": 1048576, "total_size": 20971520, "stream": 0,
		"segment_type": "large", "blocks": [{"address": 1048576, "size": 2097152, "state": "active_allocated"}]}],
		"device_traces": [[{"action": "alloc", "addr": 1048576, "size": 2097152, "stream": 0}]]}`))
	require.NoError(t, err)
	assert.Equal(t, "cache", replay.Recorded(d).Allocator)
	x, err := replay.Explain(d, "")
	require.NoError(t, err)
	assert.Contains(t, x.String(), "\nthe file lacks 1 segment with blocks that do not tile it\n")
	text, err := x.MarshalJSON()
	require.NoError(t, err)
	assert.Contains(t, string(text), `"left_out":["1 segment with blocks that do not tile it"]`)
}

// TestPoolsThatAreGone: a segment of the default pool that stands where one of a private pool stood is emptied with the
// default pool.
func TestPoolsThatAreGone(t *testing.T) {
	of := func(pool string) string {
		return fmt.Sprintf(`{"action":"segment_alloc","addr":1073741824,"size":20971520,"stream":0,"pool_id":%s},
{"action":"alloc","addr":1073741824,"size":8388608,"stream":0,"pool_id":%s},{"action":"free_completed","addr":1073741824,"size":8388608,"stream":0,"pool_id":%s},
{"action":"segment_free","addr":1073741824,"size":20971520,"stream":0,"pool_id":%s}`, pool, pool, pool, pool)
	}
	d, _, err := torch.Read(strings.NewReader(`{"segments":[],"device_traces":[[` + of("[0,1]") + "," + of("[0,0]") + `]]}`))
	require.NoError(t, err)
	got, err := replay.Run(d, replay.Recorded(d))
	require.NoError(t, err)
	assert.EqualValues(t, 2, got.DriverAllocs)
	assert.EqualValues(t, 1, got.DriverFrees, "a private pool keeps its segment")
}

// TestHostMemoryIsNotTheDevices, neither what was pinned before the history nor what is pinned in it.
func TestHostMemoryIsNotTheDevices(t *testing.T) {
	d, _, err := torch.Read(strings.NewReader(`{"segments":[{"device":0,"address":1073741824,"total_size":20971520,"stream":0,"segment_type":"large","blocks":[
{"address":1073741824,"size":8388608,"requested_size":8388608,"state":"active_allocated"},{"size":12582912,"state":"inactive"}]}],
"device_traces":[[{"action":"segment_alloc","addr":1073741824,"size":20971520,"stream":0,"time_us":2},{"action":"alloc","addr":1073741824,"size":8388608,"stream":0,"time_us":3}]],
"host_segments":[{"address":4096,"total_size":33554432,"state":"active_allocated"},{"address":536870912,"total_size":67108864,"state":"active_allocated"}],
"host_traces":[{"action":"alloc","addr":536870912,"size":67108864,"time_us":1}]}`))
	require.NoError(t, err)
	got, err := replay.Run(d, replay.Recorded(d))
	require.NoError(t, err)
	assert.Equal(t, 8*alloc.MiB, got.PeakRequested)
	assert.Equal(t, 20*alloc.MiB, got.PeakReserved)
	assert.Equal(t, 8*alloc.MiB, got.Recorded.PeakRequested)
	assert.EqualValues(t, 1, got.DriverAllocs)
}
