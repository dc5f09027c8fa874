package tracker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// refusing is a device whose next Free fails, after something else has happened.
type refusing struct {
	alloc.Device
	meanwhile func()
}

func (d *refusing) Free(p alloc.Ptr) error {
	if d.meanwhile == nil {
		return d.Device.Free(p)
	}
	meanwhile := d.meanwhile
	d.meanwhile = nil
	meanwhile()
	return sim.ErrInjected
}

// TestFreeThatFailsLate: while the device takes its time to refuse, the ledger
// drops what it keeps for that shape, and may meet the shape again.
func TestFreeThatFailsLate(t *testing.T) {
	for _, again := range []int{0, 2} {
		dev := &refusing{Device: device(t, sim.Config{})}
		tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
		one := func() *tracker.Buffer { return take(t, tr, tracker.Parameter, 7) }
		buf := one()
		dev.meanwhile = func() {
			tr.ResetPeak()
			for i := range 2000 {
				require.NoError(t, take(t, tr, tracker.Activation, 100+i).Free())
			}
			for range again {
				one()
			}
		}
		require.ErrorIs(t, buf.Free(), sim.ErrInjected)

		s := tr.Snapshot()
		trackertest.RequireExact(t, s)
		want := mem.Tally{Count: 1 + int64(again), Bytes: 28 * alloc.Bytes(1+again)}
		assert.Equal(t, want, s.Live)
		assert.Equal(t, want, tr.Track().Delta.Sum())
		require.NoError(t, buf.Free())
		assert.Equal(t, mem.Tally{Count: -1, Bytes: -28}, tr.Track().Delta.Sum())
		trackertest.RequireExact(t, tr.Snapshot())
	}
}

// TestMemoryPutBackTooLate: the ledger never overwrites what is live.
func TestMemoryPutBackTooLate(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	register := func(n int) error {
		return tr.Register(512, alloc.DeviceMemory, alloc.Shape{n}, alloc.Float32, tracker.Input)
	}
	require.NoError(t, register(1))
	putBack := unregister(t, tr, 512)
	require.NoError(t, register(2))
	require.ErrorIs(t, putBack(), tracker.ErrDuplicatePtr)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 8}, tr.Snapshot().Live)
	trackertest.RequireExact(t, tr.Snapshot())
	putBack = unregister(t, tr, 512)
	assert.Zero(t, tr.Snapshot().Live)
	require.NoError(t, tr.Close())
	require.ErrorIs(t, putBack(), alloc.ErrClosed)
	_, err := tr.Unregister(512)
	require.ErrorIs(t, err, alloc.ErrUnknownPtr)
}

// late is a device that answers MemInfo with what was a moment ago.
type late struct {
	alloc.Device
	meanwhile func()
}

func (d *late) MemInfo() (alloc.MemInfo, error) {
	info, err := d.Device.MemInfo()
	if meanwhile := d.meanwhile; meanwhile != nil {
		d.meanwhile = nil
		meanwhile()
	}
	return info, err
}

// TestLevelsHoldTogether: what the device said a moment ago is less than what is
// allocated now, so it is asked again.
func TestLevelsHoldTogether(t *testing.T) {
	dev := &late{Device: device(t, sim.Config{Overhead: -1})}
	tr, _ := open(t, tracker.Config{Device: dev, NoCache: true})
	for _, levels := range []func() snapshot.Levels{
		func() snapshot.Levels { return tr.Track().Levels },
		func() snapshot.Levels { return tr.Snapshot().Levels },
	} {
		var buf *tracker.Buffer
		dev.meanwhile = func() { buf = take(t, tr, tracker.Input, 1<<20) }
		l := levels()
		assert.Equal(t, 4*alloc.MiB, l.Allocated)
		assert.Equal(t, 4*alloc.MiB, l.Reserved)
		assert.Equal(t, 4*alloc.MiB, l.DriverUsed)
		assert.Zero(t, l.Untracked())
		require.NoError(t, buf.Free())
	}
}

// saying is a device that answers MemInfo with that.
type saying struct {
	alloc.Device
	info alloc.MemInfo
}

func (d saying) MemInfo() (alloc.MemInfo, error) { return d.info, nil }

// TestDriversThatSayWhatCannotBe: their values are shown as they are, or are
// unknown; none is made up.
func TestDriversThatSayWhatCannotBe(t *testing.T) {
	const unknown = alloc.Bytes(-1)
	for name, test := range map[string]struct {
		info                   alloc.MemInfo
		used, total, untracked alloc.Bytes
		line                   string
	}{
		"nothing is used": {
			alloc.MemInfo{Free: alloc.GiB, Total: alloc.GiB}, 0, alloc.GiB, unknown,
			"Driver Used Memory:0.0 MiB Untracked:unknown",
		},
		"there is no memory": {
			alloc.MemInfo{}, unknown, unknown, unknown,
			"Driver Used Memory:unknown Untracked:unknown",
		},
		"more is free than there is": {
			alloc.MemInfo{Free: 2 * alloc.GiB, Total: alloc.GiB}, unknown, alloc.GiB, unknown,
			"Driver Used Memory:unknown Untracked:unknown",
		},
		"less than nothing is free": {
			alloc.MemInfo{Free: -1, Total: alloc.GiB}, unknown, alloc.GiB, unknown,
			"Driver Used Memory:unknown Untracked:unknown",
		},
		"all is used": {
			alloc.MemInfo{Total: alloc.GiB}, alloc.GiB, alloc.GiB, alloc.GiB - 100*alloc.MiB,
			"Driver Used Memory:1024.0 MiB Untracked:924.0 MiB",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, report := open(t, tracker.Config{Device: saying{device(t, sim.Config{}), test.info}})
			_, err := tr.AllocBytes(100*alloc.MiB, tracker.Input)
			require.NoError(t, err)
			m := tr.Track()
			assert.Equal(t, test.used, m.DriverUsed)
			assert.Equal(t, test.total, m.DriverTotal)
			assert.Equal(t, test.untracked, m.Untracked())
			assert.Equal(t, 100*alloc.MiB, m.Reserved)
			assert.Contains(t, strings.Join(strings.Fields(report.String()), " "), test.line)
			assert.Equal(t, m.Levels, tr.Snapshot().Levels)
		})
	}
}

// TestFreeThatPanics: memory whose free panicked stays live, and can be freed again by who recovers.
func TestFreeThatPanics(t *testing.T) {
	for _, noCache := range []bool{true, false} {
		simulated := device(t, sim.Config{})
		dev := &refusing{Device: simulated}
		tr, _ := open(t, tracker.Config{Device: dev, NoCache: noCache})
		buf, other := take(t, tr, tracker.Parameter, 8<<20), take(t, tr, tracker.Activation, 8<<20)
		tr.Track()
		before := tr.Snapshot()
		dev.meanwhile = func() {
			trackertest.RequireExact(t, tr.Snapshot())
			panic("on purpose")
		}
		free := func() error { return buf.Free() }
		if !noCache { // a Free calls no driver, a ClearCache does
			require.NoError(t, buf.Free())
			free = func() error { _, err := tr.ClearCache(); return err }
			before = tr.Snapshot()
		}
		assert.PanicsWithValue(t, "on purpose", func() { _ = free() })
		after := tr.Snapshot()
		trackertest.RequireExact(t, after)
		assert.Equal(t, before.Live, after.Live)
		assert.Equal(t, before.Allocated, after.Allocated)
		assert.Equal(t, before.Reserved, after.Reserved)
		assert.Equal(t, before.Sub(nil), after.Sub(nil))
		require.NoError(t, free())
		require.NoError(t, other.Free())
		assert.Zero(t, tr.Snapshot().Live)
		require.NoError(t, tr.Close())
		live, _ := simulated.Live()
		assert.Zero(t, live)
	}
}

// callingBack is a device whose Alloc and Free call the tracker.
type callingBack struct {
	alloc.Device
	call func()
}

func (d *callingBack) Alloc(n alloc.Bytes) (alloc.Ptr, error) { d.call(); return d.Device.Alloc(n) }
func (d *callingBack) Free(p alloc.Ptr) error                 { d.call(); return d.Device.Free(p) }

// TestADeviceThatCallsTheTracker gets an error where it would wait for itself.
func TestADeviceThatCallsTheTracker(t *testing.T) {
	dev := &callingBack{Device: device(t, sim.Config{}), call: func() {}}
	tr, _ := open(t, tracker.Config{Device: dev})
	calls := 0
	dev.call = func() {
		calls++
		_, err := tr.Alloc(alloc.Shape{64 << 20}, alloc.Float32, tracker.Temporary)
		require.ErrorIs(t, err, alloc.ErrReentrant)
		assert.ErrorContains(t, err, "alloc Temporary (67108864,) float32")
		_, err = tr.ClearCache()
		require.ErrorIs(t, err, alloc.ErrReentrant)
		tr.Track()
		trackertest.RequireExact(t, tr.Snapshot())
	}
	require.NoError(t, take(t, tr, tracker.Parameter, 8<<20).Free())
	_, err := tr.ClearCache()
	require.NoError(t, err)
	assert.Equal(t, 2, calls)
	dev.call = func() {}
}
