package tracker_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// registerAll registers a megabyte of each type of memory, and returns the kinds.
func registerAll(t *testing.T, tr *tracker.MemTracker) []alloc.Memory {
	for i, m := range alloc.Memories() {
		p := alloc.Ptr(0x7000_0000 + i<<20)
		require.NoError(t, tr.Register(p, m, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Input))
		require.NoError(t, tr.SetLabel(p, m.String()))
	}
	return alloc.Memories()
}

func TestHostMemoryIsInNoTotalOfTheDevice(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Parameter)
	require.NoError(t, err)
	section := tr.Section("load")
	kinds := registerAll(t, tr)
	section.End()

	s := tr.Snapshot()
	trackertest.RequireExact(t, s)
	onDevice, onHost := int64(len(kinds)-2), mem.Tally{Count: 2, Bytes: 2 * alloc.MiB}
	assert.Equal(t, mem.Tally{Count: 1 + onDevice, Bytes: alloc.Bytes(3+onDevice) * alloc.MiB}, s.Live)
	assert.Equal(t, s.Live, s.Peak)
	assert.Equal(t, s.Live, s.Total)
	assert.Equal(t, alloc.Bytes(onDevice)*alloc.MiB, s.Registered)
	assert.Equal(t, onHost, s.Host())
	assert.Equal(t, onHost.Bytes, s.HostReserved)
	assert.EqualValues(t, onDevice, section.Data().Allocated.Count, "sections measure the device")
	for a := range s.Allocations() {
		if a.Registered {
			assert.Equal(t, a.Memory.String(), a.Label)
		} else {
			assert.Equal(t, alloc.DeviceMemory, a.Memory)
		}
	}
	for i := range kinds {
		unregister(t, tr, alloc.Ptr(0x7000_0000+i<<20))
	}
	trackertest.RequireExact(t, tr.Snapshot())
	assert.Zero(t, tr.LightSnapshot().HostReserved)
}

// TestUntrackedWithManagedMemory: nobody says how many of its pages are on the device.
func TestUntrackedWithManagedMemory(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	before := tr.LightSnapshot().Untracked()
	require.Positive(t, before)
	for _, test := range []struct {
		memory alloc.Memory
		want   alloc.Bytes
	}{
		{alloc.PinnedMemory, before}, {alloc.MappedMemory, before}, {alloc.ArrayMemory, before - alloc.MiB}, {alloc.ManagedMemory, -1},
	} {
		require.NoError(t, tr.Register(0x7000_0000, test.memory, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Input))
		assert.Equal(t, test.want, tr.LightSnapshot().Untracked(), test.memory)
		unregister(t, tr, 0x7000_0000)
	}
}

func TestReportHasALineForEachKindOfMemory(t *testing.T) {
	tr, report := open(t, tracker.Config{})
	registerAll(t, tr)
	tr.Track()
	text := report.String()
	for _, line := range []string{
		"      Managed memory:     1.0 MiB in 1 buffer, part of the device's\n",
		"      Pinned host memory: 1.0 MiB in 1 buffer, none of the device's\n",
		" | uint8 pinned host\n", " | uint8 array\n",
	} {
		assert.Contains(t, text, line)
	}
	assert.Contains(t, text, "Total Tensor Used Memory:6.0 ")
	assert.Equal(t, 7, strings.Count(text, "memory: "))
}

func TestSnapshotsKeepTheKindOfMemory(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	registerAll(t, tr)
	s := tr.Snapshot()
	text, err := s.MarshalJSON()
	require.NoError(t, err)
	read, err := snapshot.Read(bytes.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, s.Levels, read.Levels)
	want := make(map[alloc.Ptr]alloc.Memory)
	for a := range s.Allocations() {
		want[a.Ptr] = a.Memory
	}
	for a := range read.Allocations() {
		assert.Equal(t, want[a.Ptr], a.Memory)
	}
	assert.Empty(t, read.Sub(s))

	older, err := snapshot.Read(strings.NewReader(strings.ReplaceAll(string(text), `"memory":"device"`, `"older":1`)))
	require.NoError(t, err)
	for a := range older.Allocations() {
		if want[a.Ptr] == alloc.DeviceMemory {
			assert.Equal(t, alloc.UnknownMemory, a.Memory)
		}
	}
	assert.Empty(t, older.Sub(s), "what is not told is taken for the device's")
	_, err = snapshot.Read(strings.NewReader(strings.ReplaceAll(string(text), `"memory":"device"`, `"memory":"moon"`)))
	assert.ErrorContains(t, err, "moon")
}

// hostDevice gives host memory: addresses of a simulated GPU will do.
type hostDevice struct{ dev cachetest.Device }

func (h hostDevice) Alloc(n alloc.Bytes) (alloc.Ptr, error) { return h.dev.Alloc(n) }
func (h hostDevice) Free(p alloc.Ptr) error                 { return h.dev.Free(p) }
func (h hostDevice) Name() string                           { return "Host" }
func (h hostDevice) Ordinal() int                           { return 0 }
func (h hostDevice) Memory() alloc.Memory                   { return alloc.PinnedMemory }
func (h hostDevice) MemInfo() (alloc.MemInfo, error)        { return alloc.MemInfo{}, errors.ErrUnsupported }

func TestTrackerOfHostMemory(t *testing.T) {
	for name, noCache := range map[string]bool{"with a cache": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			dev, err := cachetest.NewDevice(sim.Config{Memory: alloc.GiB})
			require.NoError(t, err)
			tr, err := tracker.New(tracker.Config{Device: hostDevice{dev}, NoCache: noCache, Report: io.Discard})
			require.NoError(t, err)
			b, err := tr.AllocBytes(3*alloc.MiB, tracker.Input)
			require.NoError(t, err)
			assert.Equal(t, alloc.PinnedMemory, b.Allocation().Memory)
			s := tr.Snapshot()
			trackertest.RequireExact(t, s)
			assert.Zero(t, s.Live)
			assert.Zero(t, s.Reserved)
			assert.Nil(t, s.Cache)
			assert.Equal(t, mem.Tally{Count: 1, Bytes: 3 * alloc.MiB}, s.Memory[alloc.PinnedMemory])
			assert.Equal(t, map[bool]alloc.Bytes{false: 20 * alloc.MiB, true: 3 * alloc.MiB}[noCache], s.HostReserved)
			assert.EqualValues(t, -1, s.Untracked())
			for e := range tr.Dump().Events() {
				assert.NotEqual(t, mem.SegmentAllocated, e.Action, "reserved memory is the device's")
			}
			_, err = tr.AllocBytes(alloc.GiB, tracker.Input)
			var oom *tracker.OutOfMemoryError
			require.ErrorAs(t, err, &oom)
			assert.Len(t, oom.CallSites, 1, "who holds the host's memory")
			require.NoError(t, b.Free())
			require.NoError(t, tr.Close())
		})
	}
}

// TestExpandableSegmentsAreVirtual: where the driver has no such thing they are plain.
func TestExpandableSegmentsAreVirtual(t *testing.T) {
	dev, err := cachetest.NewDevice(sim.Config{})
	require.NoError(t, err)
	for want, dev := range map[alloc.Memory]alloc.Device{alloc.VirtualMemory: dev, alloc.DeviceMemory: noVirtual{dev}} {
		cache := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
		tr, _ := open(t, tracker.Config{Device: cache})
		for range 2 {
			b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
			require.NoError(t, err)
			assert.Equal(t, want, b.Allocation().Memory)
			require.NoError(t, b.Free())
		}
		require.NoError(t, cache.Close())
	}
}

// TestMemoryOfASharedCache: when a cache has found, for one tracker, that its segments cannot expand, the buffers of
// another tracker over it are of the right type too, though that one has not asked the driver.
func TestMemoryOfASharedCache(t *testing.T) {
	dev, err := cachetest.NewDevice(sim.Config{})
	require.NoError(t, err)
	shared := cachetest.NewCache(t, noVirtual{dev}, cache.Config{ExpandableSegments: true})
	one, _ := open(t, tracker.Config{Device: shared})
	other, _ := open(t, tracker.Config{Device: shared})
	for _, tr := range []*tracker.MemTracker{one, other, other} {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		assert.Equal(t, alloc.DeviceMemory, b.Allocation().Memory)
		require.NoError(t, b.Free())
	}
}

// noVirtual is a device whose driver is too old.
type noVirtual struct{ cachetest.Device }

func (noVirtual) Reserve(alloc.Bytes, alloc.Bytes) (alloc.Ptr, error) {
	return 0, errors.ErrUnsupported
}
