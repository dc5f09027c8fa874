package replay

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func TestRoundUp(t *testing.T) {
	for n, want := range map[alloc.Bytes]alloc.Bytes{0: 0, 1: 512, 511: 512, 512: 512, 513: 1024, 3 << 40: 3 << 40} {
		assert.Equal(t, want, roundUp(n, 512), "%d", n)
	}
}

// TestRecordedPlaces: a segment gets its recorded address if nothing else is there and all of it lies below the addresses that
// the device makes up.
func TestRecordedPlaces(t *testing.T) {
	const mib = alloc.MiB
	for name, c := range map[string]struct {
		recorded place
		size     alloc.Bytes
		used     bool
	}{
		"below the end":    {place{recordedEnd - 2<<20, 2 * mib}, 2 * mib, true},
		"across the end":   {place{recordedEnd - 2<<20, 2*mib + 1}, 2*mib + 1, false},
		"at the end":       {place{recordedEnd, 2 * mib}, 2 * mib, false},
		"above the end":    {place{recordedEnd + 2<<20, 2 * mib}, 2 * mib, false},
		"without address":  {place{0, 2 * mib}, 2 * mib, false},
		"of another size":  {place{64 << 20, 2 * mib}, 4 * mib, false},
		"beside the first": {place{20 << 20, 10 * mib}, 10 * mib, true},
		"over the first":   {place{20<<20 - 1, 10 * mib}, 10 * mib, false},
		"before the first": {place{9 << 20, 1 * mib}, 1 * mib, true},
		"into the first":   {place{9 << 20, 1*mib + 1}, 1*mib + 1, false},
		"at the first":     {place{10 << 20, 10 * mib}, 10 * mib, false},
	} {
		d := newDevice(0)
		d.recorded = []place{{10 << 20, 10 * mib}}
		p, err := d.Alloc(10 * mib)
		require.NoError(t, err)
		require.Equal(t, alloc.Ptr(10<<20), p)
		d.recorded = []place{c.recorded}
		p, err = d.Alloc(c.size)
		require.NoError(t, err)
		assert.Equal(t, c.used, p == c.recorded.ptr && p < recordedEnd, name)
		if !c.used {
			assert.GreaterOrEqual(t, p, recordedEnd, name)
		}
		require.NoError(t, d.Free(p))
		require.NoError(t, d.Free(10<<20))
		assert.Zero(t, d.reserved)
		assert.ErrorIs(t, d.Free(p), alloc.ErrUnknownPtr)
	}
}

// TestMadeUpPlaces lie one after the other, at multiples of 2 MiB.
func TestMadeUpPlaces(t *testing.T) {
	d := newDevice(0)
	want := recordedEnd
	for _, n := range []alloc.Bytes{1, 2 * alloc.MiB, 2*alloc.MiB + 1, 20 * alloc.MiB} {
		p, err := d.Alloc(n)
		require.NoError(t, err)
		assert.Equal(t, want, p)
		want += roundUp(alloc.Ptr(n), 2<<20)
		p, err = d.Reserve(n, 0)
		require.NoError(t, err)
		assert.Equal(t, want, p)
		want += roundUp(alloc.Ptr(n), 2<<20)
	}
}

// TestRecordedPlacesAreBounded: a hostile history cannot make each segment move tens of thousands of others.
func TestRecordedPlacesAreBounded(t *testing.T) {
	d := newDevice(0)
	for i := range maxHeld + 1 {
		at := alloc.Ptr(i+1) << 21
		d.recorded = []place{{at, 2 * alloc.MiB}}
		p, err := d.Alloc(2 * alloc.MiB)
		require.NoError(t, err)
		assert.Equal(t, i < maxHeld, p == at)
	}
	assert.Len(t, d.held, maxHeld)
}

// TestAddressesEnd: a range that would wrap around is refused.
func TestAddressesEnd(t *testing.T) {
	d := newDevice(0)
	_, err := d.Reserve(0, 0)
	assert.Error(t, err)
	_, err = d.Reserve(-1, 0)
	assert.Error(t, err)
	d.next = math.MaxUint64 - 6<<20 + 1
	_, err = d.Reserve(6*alloc.MiB, 0)
	assert.Error(t, err, "the end would be address 0")
	p, err := d.Reserve(4*alloc.MiB, 0)
	require.NoError(t, err)
	assert.Equal(t, alloc.Ptr(math.MaxUint64-6<<20+1), p)
	_, err = d.Reserve(2*alloc.MiB, 0)
	assert.Error(t, err)
}
