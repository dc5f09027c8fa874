package trackertest

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// OutOfMemory fills the device in each of the ways that there is advice for,
// and checks that the error says which it is, with the right values. It needs a device with at least 256 MiB
// free.
func OutOfMemory(t *testing.T, open func(t *testing.T) Rig) {
	for _, test := range []struct {
		advice string // its first words
		fill   func(f *filler) (request alloc.Bytes)
	}{
		{"truly full", (*filler).full},
		{"fragmented", (*filler).fragmented},
		{"inactive elsewhere", (*filler).cachedElsewhere},
		{"other process", (*filler).otherProcess},
	} {
		t.Run(test.advice, func(t *testing.T) {
			rig := open(t)
			f := &filler{T: t, device: rig.Device, tr: newTracker(t, rig.Device)}
			info, err := rig.Device.MemInfo()
			require.NoError(t, err)
			// A real driver does not give all that it calls free in one piece.
			f.size = info.Free / 16 * 15 / (32 * alloc.MiB) * (32 * alloc.MiB)
			f.check(test.fill(f), test.advice)
		})
	}
}

// newTracker returns a tracker without a report.
func newTracker(t require.TestingT, device alloc.Device) *tracker.MemTracker {
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	require.NoError(t, err)
	return tr
}

// filler fills a device.
type filler struct {
	*testing.T
	device alloc.Device
	tr     *tracker.MemTracker
	size   alloc.Bytes // nearly all that is free at first
	held   []*tracker.Buffer
}

// take allocates memory that the test gives back at its end.
func (f *filler) take(n alloc.Bytes) *tracker.Buffer {
	f.Helper()
	buf, err := f.tr.AllocBytes(n, tracker.Activation)
	require.NoError(f, err)
	f.held = append(f.held, buf)
	return buf
}

// drop frees memory that take gave.
func (f *filler) drop(buf *tracker.Buffer) {
	f.Helper()
	require.NoError(f, buf.Free())
	for i, held := range f.held {
		if held == buf {
			f.held = append(f.held[:i], f.held[i+1:]...)
			break
		}
	}
}

func (f *filler) full() alloc.Bytes {
	for range 4 {
		f.take(f.size / 4)
	}
	return f.size / 4
}

// fragmented leaves two holes in one segment, with a live buffer between them.
func (f *filler) fragmented() alloc.Bytes {
	f.drop(f.take(f.size))
	first := f.take(f.size / 2)
	f.take(2 * alloc.MiB)
	f.drop(first)
	return f.size / 4 * 3
}

func (f *filler) cachedElsewhere() alloc.Bytes {
	other := newTracker(f, f.device)
	buf, err := other.AllocBytes(f.size, tracker.Activation)
	require.NoError(f, err)
	require.NoError(f, buf.Free())
	f.Cleanup(func() { assert.NoError(f, other.Close()) })
	return f.size / 2
}

// otherProcess takes memory that the tracker knows nothing of.
func (f *filler) otherProcess() alloc.Bytes {
	p, err := f.device.Alloc(f.size / 4 * 3)
	require.NoError(f, err)
	f.Cleanup(func() { assert.NoError(f, f.device.Free(p)) })
	f.take(f.size / 8)
	return f.size / 2
}

// check asks for what cannot be had.
func (f *filler) check(request alloc.Bytes, advice string) {
	f.Helper()
	section := f.tr.Section("step")
	_, err := f.tr.AllocBytes(request, tracker.Gradient)
	section.End()
	require.ErrorIs(f, err, alloc.ErrOutOfMemory)
	var plain *alloc.OutOfMemoryError
	require.ErrorAs(f, err, &plain)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(f, err, &oom)

	s := f.tr.Snapshot()
	assert.Equal(f, request, oom.Requested)
	assert.Equal(f, s.Reserved, oom.Reserved)
	assert.Equal(f, s.Cache.Inactive.Bytes.Current, oom.Inactive)
	assert.Equal(f, s.Cache.LargestInactive, oom.LargestInactive)
	assert.Equal(f, "step", oom.Section)
	if len(f.held) > 0 {
		require.NotEmpty(f, oom.CallSites)
		assert.Equal(f, s.Live, oom.CallSites[0].Tally, "all of it is from one line")
	}
	for _, text := range []string{
		fmt.Sprint(request, " requested"), fmt.Sprint("free ", oom.Free, " of ", oom.Total),
		fmt.Sprint("largest inactive block ", oom.LargestInactive), fmt.Sprint("reserved ", oom.Reserved, ", of which inactive ", oom.Inactive),
		fmt.Sprint("untracked ", oom.Untracked), "advice: " + advice + ": ",
	} {
		assert.Contains(f, err.Error(), text)
	}

	for _, buf := range f.held {
		assert.NoError(f, buf.Free())
	}
	assert.NoError(f, f.tr.Close())
}
