package alloctest

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// subject is the device under test.
type subject struct {
	alloc.Device
	shared bool
}

// Unwrap lets alloc.As see the device's optional methods.
func (s subject) Unwrap() alloc.Device { return s.Device }

func memInfo(t testing.TB, dev alloc.Device) alloc.MemInfo {
	t.Helper()
	info, err := dev.MemInfo()
	require.NoError(t, err)
	return info
}

// assertUnchanged checks that as much is free as before.
func assertUnchanged(t *testing.T, dev subject, before alloc.MemInfo) {
	t.Helper()
	switch now := memInfo(t, dev); {
	case !dev.shared:
		assert.Equal(t, before, now, "memory is in use that was free, or the other way round")
	case now != before:
		t.Logf("free memory went from %v to %v", before.Free, now.Free)
	}
}

func mustAlloc(t testing.TB, dev alloc.Device, n alloc.Bytes) alloc.Ptr {
	t.Helper()
	p, err := dev.Alloc(n)
	require.NoError(t, err)
	return p
}

// span is an allocation of the size that was asked for.
type span struct {
	ptr  alloc.Ptr
	size alloc.Bytes
}

func requireDisjoint(t *testing.T, live []span) {
	t.Helper()
	slices.SortFunc(live, func(a, b span) int { return cmp.Compare(a.ptr, b.ptr) })
	for i := 1; i < len(live); i++ {
		before := live[i-1]
		require.GreaterOrEqual(t, live[i].ptr, before.ptr+alloc.Ptr(max(before.size, 1)), "allocations overlap")
	}
}

// requireNotLive accepts either error, since not every device can tell.
func requireNotLive(t *testing.T, err error) {
	t.Helper()
	require.True(t, errors.Is(err, alloc.ErrDoubleFree) || errors.Is(err, alloc.ErrUnknownPtr), "%v", err)
}
