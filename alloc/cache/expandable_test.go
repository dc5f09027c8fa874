package cache_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// mapping is a device on which something happens during the next Map.
type mapping struct {
	cachetest.Device
	meanwhile func()
}

func (d *mapping) Map(p alloc.Ptr, n alloc.Bytes) error {
	if do := d.meanwhile; do != nil {
		d.meanwhile = nil
		do()
	}
	return d.Device.Map(p, n)
}

// holed returns an expandable cache with an inactive block of 20 MiB at p, a hole of 20 MiB behind it, and an allocated
// block behind the hole, at q.
func holed(t *testing.T, dev alloc.Device) (c *cache.Cache, p, q alloc.Ptr) {
	c = cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	p, hole := mustAlloc(t, c, 20*alloc.MiB), mustAlloc(t, c, 20*alloc.MiB)
	q = mustAlloc(t, c, 20*alloc.MiB)
	require.NoError(t, c.Free(hole))
	given, err := c.Trim()
	require.NoError(t, err)
	require.Equal(t, 20*alloc.MiB, given)
	require.NoError(t, c.Free(p))
	return c, p, q
}

// TestMappingServesBesideOtherRequests: while the driver maps the hole, another request takes a part of the free memory
// before it. What is left does not suffice, so the request goes behind the allocated block.
func TestMappingServesBesideOtherRequests(t *testing.T) {
	dev := &mapping{Device: open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})}
	c, p, q := holed(t, dev)
	dev.meanwhile = func() { assert.Equal(t, p, mustAlloc(t, c, 15*alloc.MiB)) }
	assert.Equal(t, q+alloc.Ptr(20*alloc.MiB), mustAlloc(t, c, 40*alloc.MiB))
	cachetest.Invariants(t, c)
	assert.Equal(t, p+alloc.Ptr(15*alloc.MiB), mustAlloc(t, c, 25*alloc.MiB), "what was mapped stays in the cache")
	assert.Equal(t, 100*alloc.MiB, c.Stats().Reserved.Bytes.Current)
}

// TestMappingStopsWhenEnoughIsFree: while the driver maps the hole, the block behind it is freed. No more is mapped.
func TestMappingStopsWhenEnoughIsFree(t *testing.T) {
	dev := &mapping{Device: open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})}
	c, p, q := holed(t, dev)
	dev.meanwhile = func() {
		assert.Equal(t, p, mustAlloc(t, c, 15*alloc.MiB))
		assert.NoError(t, c.Free(q))
	}
	assert.Equal(t, p+alloc.Ptr(15*alloc.MiB), mustAlloc(t, c, 40*alloc.MiB))
	assert.Equal(t, 60*alloc.MiB, c.Stats().Reserved.Bytes.Current)
	cachetest.Invariants(t, c)
}

// TestMappingTakesTheLowestAddresses: a request that needs memory to be mapped begins at the free block before a hole, and
// maps no more than whole chunks of what is missing.
func TestMappingTakesTheLowestAddresses(t *testing.T) {
	dev := open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})
	c, p, _ := holed(t, dev)
	assert.Equal(t, p, mustAlloc(t, c, 40*alloc.MiB), "the hole and the block before it have just enough")
	assert.Equal(t, 60*alloc.MiB, c.Stats().Reserved.Bytes.Current)
	require.NoError(t, c.Free(p))

	c, p, q := holed(t, dev)
	assert.Equal(t, q+alloc.Ptr(20*alloc.MiB), mustAlloc(t, c, 40*alloc.MiB+512), "here they have not")
	assert.Equal(t, 100*alloc.MiB, c.Stats().Reserved.Bytes.Current, "three chunks for it")
	assert.Equal(t, p, mustAlloc(t, c, 20*alloc.MiB+512), "512 bytes are missing: one chunk")
	assert.Equal(t, 120*alloc.MiB, c.Stats().Reserved.Bytes.Current)
	cachetest.Invariants(t, c)
}

// TestTrimSplitsBlocksAtChunks: a free block that begins and ends inside chunks gives back the chunks between, and keeps
// its ends.
func TestTrimSplitsBlocksAtChunks(t *testing.T) {
	dev := open(t, sim.Config{Memory: 400 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	front, middle, back := mustAlloc(t, c, 5*alloc.MiB), mustAlloc(t, c, 50*alloc.MiB), mustAlloc(t, c, 5*alloc.MiB)
	require.NoError(t, c.Free(middle))
	assert.Equal(t, 20*alloc.MiB, c.Stats().Reclaimable, "one chunk lies in it entirely")
	given, err := c.Trim()
	require.NoError(t, err)
	assert.Equal(t, 20*alloc.MiB, given)
	assert.Zero(t, c.Stats().Reclaimable)
	assert.Equal(t, alloc.Gauge[int64]{Current: 2, Peak: 2, Total: 2}, c.Stats().Reserved.Count, "a hole makes two segments")
	assert.Equal(t, alloc.Gauge[alloc.Bytes]{Current: 40 * alloc.MiB, Peak: 60 * alloc.MiB, Total: 60 * alloc.MiB}, c.Stats().Reserved.Bytes)
	var segments []alloc.Segment
	for s := range c.Segments() {
		segments = append(segments, s)
	}
	chunk := alloc.Ptr(20 * alloc.MiB)
	assert.Equal(t, []alloc.Segment{
		{Ptr: front, Size: 20 * alloc.MiB, Pool: "large", Blocks: []alloc.Block{
			{Ptr: front, Size: 5 * alloc.MiB, Requested: 5 * alloc.MiB, State: alloc.Allocated},
			{Ptr: middle, Size: 15 * alloc.MiB, State: alloc.Inactive},
		}},
		{Ptr: front + 2*chunk, Size: 20 * alloc.MiB, Pool: "large", Blocks: []alloc.Block{
			{Ptr: front + 2*chunk, Size: 15 * alloc.MiB, State: alloc.Inactive},
			{Ptr: back, Size: 5 * alloc.MiB, Requested: 5 * alloc.MiB, State: alloc.Allocated},
		}},
	}, segments)
	cachetest.Invariants(t, c)

	// The hole is filled: one segment again, and all of it is one block.
	assert.Equal(t, middle, mustAlloc(t, c, 50*alloc.MiB))
	assert.Equal(t, int64(1), c.Stats().Reserved.Count.Current)
	for _, p := range []alloc.Ptr{front, middle, back} {
		require.NoError(t, c.Free(p))
	}
	assert.Equal(t, int64(1), c.Stats().Inactive.Count.Current)
	assert.Equal(t, 60*alloc.MiB, c.Stats().Reclaimable)
}

// TestTrimKeepsWhatTheDriverDoesNotUnmap: memory that the driver refuses to unmap stays free in the cache, and counts as
// no new memory.
func TestTrimKeepsWhatTheDriverDoesNotUnmap(t *testing.T) {
	dev := open(t, sim.Config{Memory: 400 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	front, middle := mustAlloc(t, c, 5*alloc.MiB), mustAlloc(t, c, 50*alloc.MiB)
	require.NoError(t, c.Free(middle))
	before := c.Stats()
	dev.Inject(sim.Fault{Call: "Unmap"})
	given, err := c.Trim()
	require.ErrorIs(t, err, sim.ErrInjected)
	assert.Zero(t, given)
	assert.Equal(t, before, c.Stats())
	cachetest.Invariants(t, c)
	require.NoError(t, c.Free(front))
	given, err = c.Trim()
	require.NoError(t, err)
	assert.Equal(t, 60*alloc.MiB, given)
}

// TestAddressesThatTheDriverKeeps: addresses of a segment that the driver refuses to take back are offered to it again
// by each Trim and by Close.
func TestAddressesThatTheDriverKeeps(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	require.NoError(t, c.Free(mustAlloc(t, c, alloc.MiB)))
	dev.Inject(sim.Fault{Call: "Reserve", Times: 2})
	given, err := c.Trim()
	require.ErrorIs(t, err, sim.ErrInjected)
	assert.Equal(t, 2*alloc.MiB, given, "the memory has gone back")
	_, err = c.Trim()
	require.ErrorIs(t, err, sim.ErrInjected)
	calls := dev.Calls("Reserve")
	require.NoError(t, c.Close())
	assert.Equal(t, calls+1, dev.Calls("Reserve"))
}

// TestCloseReportsAddressesThatStay: Close gives back segments that never had memory, too.
func TestCloseReportsAddressesThatStay(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	dev.SetOther(64 * alloc.MiB)
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	_, err := c.Alloc(1)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	dev.Inject(sim.Fault{Call: "Reserve"})
	assert.ErrorIs(t, c.Close(), sim.ErrInjected)
}

// TestRequestForAllAddresses: a segment has addresses for 9/8 of the device's memory, and a request for more is out of
// memory without a call of the driver.
func TestRequestForAllAddresses(t *testing.T) {
	dev := open(t, sim.Config{Memory: 160 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	_, err := c.Alloc(180 * alloc.MiB)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, 1, dev.Calls("Reserve"), "it has that many addresses, but no memory for them")
	c = cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	_, err = c.Alloc(180*alloc.MiB + 1)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	assert.Equal(t, 1, dev.Calls("Reserve"))
}

// reserving has memory of its own size, and keeps the sizes that were reserved.
type reserving struct {
	*counting.Device
	total    alloc.Bytes
	err      error
	reserved []alloc.Bytes
}

func (d *reserving) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{Free: d.total, Total: d.total}, d.err
}

func (d *reserving) Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error) {
	d.reserved = append(d.reserved, n)
	return d.Device.Reserve(n, chunk)
}

// TestReservations: a segment has an eighth more addresses than its device has memory, in whole chunks, and 64 TiB if
// that is not known or not below 32 TiB.
func TestReservations(t *testing.T) {
	for _, test := range []struct {
		total alloc.Bytes
		err   error
		want  alloc.Bytes
	}{
		{160 * alloc.MiB, nil, 180 * alloc.MiB},
		{161 * alloc.MiB, nil, 200 * alloc.MiB},
		{16 * alloc.TiB, nil, 18*alloc.TiB + 12*alloc.MiB},
		{32 * alloc.TiB, nil, 64*alloc.TiB + 16*alloc.MiB},
		{40 * alloc.TiB, nil, 64*alloc.TiB + 16*alloc.MiB},
		{0, nil, 64*alloc.TiB + 16*alloc.MiB},
		{-1, nil, 64*alloc.TiB + 16*alloc.MiB},
		{160 * alloc.MiB, errors.New("unknown"), 64*alloc.TiB + 16*alloc.MiB},
	} {
		dev := &reserving{counting.New(0), test.total, test.err, nil}
		c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
		mustAlloc(t, c, 20*alloc.MiB)
		assert.Equal(t, []alloc.Bytes{test.want}, dev.reserved, "%v of memory", test.total)
		assert.Zero(t, test.want%(20*alloc.MiB))
	}
}
