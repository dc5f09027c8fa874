package cache

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const (
	kib = alloc.KiB
	mib = alloc.MiB
	gib = alloc.GiB
)

// TestRoundup holds PyTorch's rule for roundup_power2_divisions (round_size and roundup_power2_next_division) on both
// sides of each of its boundaries.
func TestRoundup(t *testing.T) {
	quarters := rounding{some: true}
	for i := range quarters.parts {
		quarters.parts[i] = 4
	}
	for request, block := range map[alloc.Bytes]alloc.Bytes{
		0:             512,
		511:           512,
		512:           512,
		513:           1024, // up to 512 x 4 a block is rounded to 512 only
		2 * kib:       2 * kib,
		2*kib + 1:     2*kib + 512, // above, to quarters of the power of two below
		3*kib + 1:     3*kib + 512,
		4 * kib:       4 * kib,
		4*kib + 1:     5 * kib,
		mib:           mib,
		mib + 1:       mib + 256*kib,
		1<<46 + 1:     5 << 44,
		1 << 47:       1 << 47, // more than any device has: rounded to 512 only
		1<<47 + 1:     1<<47 + 512,
		maxRequest:    maxRequest + 1,
		math.MaxInt64: math.MaxInt64,
	} {
		assert.Equal(t, block, quarters.blockSize(request), "block for %d", int64(request))
	}

	// Each range of sizes has its own number of parts. The first ends below 2 MiB, the last begins at 32 GiB.
	ranges := rounding{some: true}
	ranges.parts = [16]int{0: 2, 1: 4, 2: 1, 3: 0, 14: 8, 15: 16}
	for request, block := range map[alloc.Bytes]alloc.Bytes{
		1*kib + 1:          1*kib + 512,
		2*kib + 1:          3 * kib,
		2*mib - 1:          2 * mib,
		2*mib + 1:          2*mib + 512*kib,
		4*mib - 1:          4 * mib,
		4*mib + 1:          4*mib + 512, // 1 part is no rounding
		8*mib + 1:          8*mib + 512, // nor is 0
		32*gib - 1:         32 * gib,
		16*gib + 1:         18 * gib,
		32*gib + 1:         34 * gib,
		64*gib + 1:         68 * gib,
		16*gib + 2*gib:     18 * gib,
		16*gib + 2*gib - 1: 18 * gib,
	} {
		assert.Equal(t, block, ranges.blockSize(request), "block for %d", int64(request))
	}
}

// TestServes: a block of MaxSplitSize or more serves only requests of that size or more, and only if less than
// MaxNonSplitRounding of it stays unused.
func TestServes(t *testing.T) {
	unlimited := newFitting(Config{})
	assert.True(t, unlimited.serves(&block{size: alloc.TiB}, 2*mib))

	f := newFitting(Config{MaxSplitSize: 32 * mib})
	for _, test := range []struct {
		block, request alloc.Bytes
		serves         bool
	}{
		{32*mib - 512, 2 * mib, true},
		{32 * mib, 2 * mib, false},
		{32 * mib, 32*mib - 512, false},
		{32 * mib, 32 * mib, true},
		{52*mib - 512, 32 * mib, true}, // 20 MiB is the default of MaxNonSplitRounding
		{52 * mib, 32 * mib, false},
	} {
		assert.Equal(t, test.serves, f.serves(&block{size: test.block}, test.request), "%v for %v", test.block, test.request)
	}
	f = newFitting(Config{MaxSplitSize: 32 * mib, MaxNonSplitRounding: 40 * mib})
	assert.True(t, f.serves(&block{size: 72*mib - 512}, 32*mib))
	assert.False(t, f.serves(&block{size: 72 * mib}, 32*mib))
	f = newFitting(Config{MaxSplitSize: 64 * mib, largeSegmentSize: 64 * mib})
	assert.True(t, f.serves(&block{size: 128*mib - 512}, 64*mib), "a large segment raises the default")
	assert.False(t, f.serves(&block{size: 128 * mib}, 64*mib))
}

// TestSplits: a small block is split if 512 bytes remain, a large one if more than 1 MiB does. Requests of MaxSplitSize
// or more get whole blocks.
func TestSplits(t *testing.T) {
	for _, test := range []struct {
		maxSplit       alloc.Bytes
		pool           pool
		block, request alloc.Bytes
		splits         bool
	}{
		{0, small, 1024, 1024, false},
		{0, small, 1024, 512, true},
		{0, large, 20 * mib, 19 * mib, false},
		{0, large, 20 * mib, 19*mib - 512, true},
		{0, large, alloc.TiB, 100 * gib, true},
		{32 * mib, large, 40 * mib, 32*mib - 512, true},
		{32 * mib, large, 40 * mib, 32 * mib, false},
	} {
		f := newFitting(Config{MaxSplitSize: test.maxSplit})
		assert.Equal(t, test.splits, f.splits(&block{size: test.block, pool: test.pool}, test.request), "%+v", test)
	}
}

// TestPoolOf: requests up to 1 MiB are small.
func TestPoolOf(t *testing.T) {
	assert.Equal(t, small, poolOf(512))
	assert.Equal(t, small, poolOf(mib))
	assert.Equal(t, large, poolOf(mib+512))
	assert.Equal(t, "small", small.String())
	assert.Equal(t, "large", large.String())
}

// TestAddresses: an expandable segment reserves an eighth more addresses than the device has memory, as in PyTorch, and
// expandable_segments_reserve can only lower that.
func TestAddresses(t *testing.T) {
	const total = 160 * mib
	for _, test := range []struct {
		cfg  Config
		want alloc.Bytes
	}{
		{Config{}, 180 * mib},
		{Config{reserveFraction: 0.25}, 40 * mib},
		{Config{reserveFraction: 1}, total},
		{Config{reserveFraction: 3}, 180 * mib},
		{Config{reserve: 40 * mib}, 40 * mib},
		{Config{reserve: alloc.TiB}, 180 * mib},
	} {
		assert.Equal(t, test.want, test.cfg.addresses(total), "%+v", test.cfg)
	}
}
