package alloctest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// has reports whether a device, or one that it wraps, is a T.
func has[T any](dev subject) bool {
	_, ok := alloc.As[T](dev)
	return ok
}

// copies reports whether a device copies: some can only if they are opened for it.
func copies(dev subject) bool {
	device, ok := alloc.As[alloc.Copier](dev)
	return ok && !errors.Is(device.CopyToDevice(0, nil), errors.ErrUnsupported)
}

// maps reports whether a device has virtual memory: some find out when they are asked.
func maps(dev subject) bool {
	device, ok := alloc.As[capability.VirtualDevice](dev)
	if !ok {
		return false
	}
	p, err := device.Reserve(2*alloc.MiB, 2*alloc.MiB)
	if err == nil {
		err = device.Release(p)
	}
	return !errors.Is(err, errors.ErrUnsupported)
}

func as[T any](t *testing.T, dev subject) T {
	t.Helper()
	device, ok := alloc.As[T](dev)
	require.True(t, ok)
	return device
}

func testSized(t *testing.T, dev subject) {
	sized := as[alloc.StreamAllocator](t, dev)
	for _, n := range []alloc.Bytes{0, 1, 512, alloc.MiB + 1} {
		p, allocated, err := sized.AllocOn(n, 0)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, allocated, n)
		require.NoError(t, dev.Free(p))
	}
	_, _, err := sized.AllocOn(-1, 0)
	assert.ErrorIs(t, err, alloc.ErrSize)
}

func testSynchronize(t *testing.T, dev subject) {
	device := as[capability.Synchronizer](t, dev)
	assert.NoError(t, device.Synchronize())
}

func testEvents(t *testing.T, dev subject) {
	device := as[capability.EventDevice](t, dev)
	event, err := device.RecordEvent(0)
	require.NoError(t, err)
	require.NoError(t, event.Wait(), "the work before it ends")
	event, err = device.RecordEvent(0)
	require.NoError(t, err)
	done, err := event.Done()
	require.NoError(t, err)
	assert.True(t, done, "no work was queued since")
}

func testCopy(t *testing.T, dev subject) {
	device := as[alloc.Copier](t, dev)
	const size = 3*alloc.MiB + 5
	p, neighbour := mustAlloc(t, dev, size), mustAlloc(t, dev, size)
	pattern := make([]byte, size)
	for i := range pattern {
		pattern[i] = byte(i * 7)
	}
	require.NoError(t, device.CopyToDevice(neighbour, make([]byte, size)))
	require.NoError(t, device.CopyToDevice(p, pattern))
	got := make([]byte, size)
	require.NoError(t, device.CopyToHost(got, p))
	assert.True(t, bytes.Equal(pattern, got), "what was written is read")

	require.NoError(t, device.CopyToDevice(p+1000, []byte("inside")))
	require.NoError(t, device.CopyToHost(got[:8], p+999))
	assert.Equal(t, append([]byte{pattern[999]}, "inside"...), got[:7])
	assert.Equal(t, pattern[1006], got[7])

	require.NoError(t, device.CopyToHost(got, neighbour))
	assert.True(t, bytes.Equal(make([]byte, size), got), "the neighbour is untouched")
	assert.NoError(t, dev.Free(p))
	assert.NoError(t, dev.Free(neighbour))
}

func testVirtual(t *testing.T, dev subject) {
	device := as[capability.VirtualDevice](t, dev)
	const chunk = 2 * alloc.MiB
	before := memInfo(t, dev)
	p, err := device.Reserve(8*chunk, chunk)
	require.NoError(t, err)
	q, err := device.Reserve(10*chunk, 10*chunk)
	require.NoError(t, err)
	assert.NotEqual(t, p, q)
	assertUnchanged(t, dev, before) // addresses are no memory

	require.NoError(t, device.Map(p+alloc.Ptr(2*chunk), 3*chunk))
	require.NoError(t, device.Map(p, 2*chunk))
	require.NoError(t, device.Map(q, 10*chunk))
	if took := before.Free - memInfo(t, dev).Free; !dev.shared {
		assert.Equal(t, 15*chunk, took)
	}
	require.NoError(t, device.Unmap(p+alloc.Ptr(chunk), 2*chunk))
	require.NoError(t, device.Map(p+alloc.Ptr(2*chunk), chunk), "addresses are used again")
	require.NoError(t, device.Unmap(p+alloc.Ptr(2*chunk), 3*chunk))
	require.NoError(t, device.Unmap(p, chunk))
	require.NoError(t, device.Unmap(q, 10*chunk))
	assertUnchanged(t, dev, before)
	require.NoError(t, device.Release(p))
	require.NoError(t, device.Release(q))

	huge := (before.Total/chunk + 1) * chunk
	p, err = device.Reserve(huge, chunk)
	require.NoError(t, err)
	assert.ErrorIs(t, device.Map(p, huge), alloc.ErrOutOfMemory)
	assertUnchanged(t, dev, before)
	require.NoError(t, device.Release(p))
	_, err = device.Reserve(chunk+1, chunk)
	assert.ErrorIs(t, err, alloc.ErrSize)
}

func testInterval(t *testing.T, dev subject) {
	device := as[capability.Timer](t, dev)
	interval, err := device.StartInterval()
	require.NoError(t, err)
	_, err = interval.Elapsed()
	require.Error(t, err, "it was not stopped")
	require.NoError(t, interval.Stop())
	elapsed, err := interval.Elapsed()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, elapsed, time.Duration(0))
}
