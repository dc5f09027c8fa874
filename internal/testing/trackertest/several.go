package trackertest

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Several tests a tracker on each of two devices, with the ordinals 0 and 1, and copies between them.
func Several(t *testing.T, devices ...alloc.Device) {
	var trackers []*tracker.MemTracker
	var buffers []*tracker.Buffer
	for _, dev := range devices {
		tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
		require.NoError(t, err)
		defer func() { require.NoError(t, tr.Close()) }()
		b, err := tr.Alloc(alloc.Shape{4}, alloc.Float32, tracker.Parameter)
		require.NoError(t, err)
		trackers, buffers = append(trackers, tr), append(buffers, b)
	}
	src, dst := buffers[0], buffers[1]
	src.SetLabel("layer1.weight")
	want := []float32{1, 2, 3, 4}
	require.NoError(t, tracker.CopyIn(src, want))
	require.NoError(t, tracker.Copy(dst, src))
	got := make([]float32, 4)
	require.NoError(t, tracker.CopyOut(dst, got))
	assert.Equal(t, want, got)
	assert.Equal(t, "copy of layer1.weight on "+devices[0].Name()+" 0", dst.Allocation().Label)
	require.NoError(t, tracker.Copy(src, dst))
	assert.Equal(t, "layer1.weight", src.Allocation().Label, "a name that it has")
	copyErrors(t, trackers[1], dst, src)

	text := tracker.SnapshotAll(trackers...).String()
	assert.Regexp(t, `(?m)^`+devices[0].Name()+` \[0\] +1 buffer, 16 B .*\n`+devices[1].Name()+` \[1\] +2 buffers, 24 B .*\n2 devices +3 buffers, 40 B `, text)
	assert.Contains(t, text, "\n"+devices[1].Name()+" [1]\n")

	var dump bytes.Buffer
	require.NoError(t, tracker.DumpAll(trackers...).WriteJSON(&dump))
	read, err := snapshot.ReadDump(&dump)
	require.NoError(t, err)
	require.Len(t, read.Others, 1)
	assert.Equal(t, 1, read.Others[0].Snapshot.Ordinal)
	assert.EqualValues(t, 1, read.Snapshot.Live.Count)
	assert.EqualValues(t, 2, read.Others[0].Snapshot.Live.Count)
	for _, b := range buffers {
		require.NoError(t, b.Free())
	}
	require.ErrorIs(t, tracker.Copy(dst, src), alloc.ErrUnknownPtr)
}

// copyErrors leaves a buffer of 8 bytes live.
func copyErrors(t *testing.T, tr *tracker.MemTracker, dst, src *tracker.Buffer) {
	small, err := tr.Alloc(alloc.Shape{2}, alloc.Int32, tracker.Input)
	require.NoError(t, err)
	err = tracker.Copy(small, src)
	require.ErrorContains(t, err, "elements of float32: want int32")
	require.ErrorContains(t, err, tr.Device().Name()+" 1")
	raw, err := tr.AllocBytes(15, tracker.Input)
	require.NoError(t, err)
	require.ErrorIs(t, tracker.Copy(raw, src), alloc.ErrSize)
	require.NoError(t, tracker.Copy(dst, raw), "bytes are of any type")
	require.NoError(t, raw.Free())
}
