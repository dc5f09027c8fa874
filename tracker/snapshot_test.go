package tracker_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// example returns a snapshot with something of everything.
func example(t *testing.T) *snapshot.Snapshot {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	for range 3 {
		take(t, tr, tracker.Parameter, 64, 3, 3, 3)
	}
	named, err := tr.Alloc(alloc.Shape{512}, alloc.BFloat16, tracker.OptimizerState)
	require.NoError(t, err)
	named.SetLabel("adam.m")
	require.NoError(t, take(t, tr, tracker.Temporary, 1<<20).Free())
	require.NoError(t, tr.Register(1<<45, alloc.DeviceMemory, alloc.Shape{}, alloc.Complex128, tracker.Unspecified))
	return tr.Snapshot()
}

func TestSnapshotRoundTrip(t *testing.T) {
	want := example(t)
	var text bytes.Buffer
	require.NoError(t, want.WriteJSON(&text))
	got, err := snapshot.Read(&text)
	require.NoError(t, err)

	assert.Equal(t, slices.Collect(want.Allocations()), slices.Collect(got.Allocations()))
	assert.Equal(t, slices.Collect(want.CallSites()), slices.Collect(got.CallSites()))
	assert.Equal(t, want.Sub(nil), got.Sub(nil))
	assert.Equal(t, want.String(), got.String())
	assert.Equal(t, want.Levels, got.Levels)
	assert.Equal(t, want.Peak, got.Peak)
	assert.Equal(t, want.Total, got.Total)
	assert.Equal(t, want.Cache, got.Cache)
	assert.Equal(t, want.Segments, got.Segments)
	assert.Empty(t, want.Sub(got))

	again, err := json.Marshal(got)
	require.NoError(t, err)
	first, err := json.Marshal(want)
	require.NoError(t, err)
	assert.JSONEq(t, string(first), string(again))
}

// identified is a device with a name of its own.
type identified struct{ alloc.Device }

func (identified) UUID() string { return "GPU-e3a10000-0000-4000-8000-000000000000" }

// TestUUID finds a device's own name in what is written of it, also below a cache; a device without one has none.
func TestUUID(t *testing.T) {
	tr, _ := open(t, tracker.Config{Device: identified{device(t, sim.Config{})}})
	take(t, tr, tracker.Parameter, 1)
	want := identified{}.UUID()
	assert.Equal(t, want, tr.LightSnapshot().UUID)
	var text bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&text))
	read, err := snapshot.ReadDump(&text)
	require.NoError(t, err)
	assert.Equal(t, want, read.Snapshot.UUID)
	assert.Equal(t, want, read.Devices[0].UUID)
	past, err := rewind.At(read, 0)
	require.NoError(t, err)
	assert.Equal(t, want, past.UUID)

	other, _ := open(t, tracker.Config{})
	assert.Empty(t, other.Snapshot().UUID)
	text.Reset()
	require.NoError(t, other.Snapshot().WriteJSON(&text))
	assert.NotContains(t, text.String(), "uuid")
}

func TestSnapshotDoesNotChange(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	take(t, tr, tracker.Parameter, 3)
	s := tr.Snapshot()
	before := s.String()
	take(t, tr, tracker.Parameter, 5)
	assert.Equal(t, before, s.String())
	d := tr.Snapshot().Sub(s)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 20}, d.Sum())
	assert.Equal(t, mem.Tally{Count: -1, Bytes: -20}, s.Sub(tr.Snapshot()).Sum())
}

func TestLightSnapshot(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	take(t, tr, tracker.Parameter, 3)
	light, full := tr.LightSnapshot(), tr.Snapshot()
	assert.Empty(t, slices.Collect(light.Allocations()))
	assert.Equal(t, full.String(), light.String())
}

func TestGroupsAndChangesPrintAsReportsDo(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	take(t, tr, tracker.Parameter, 3)
	delta := tr.Track().Delta
	require.Equal(t, 1, len(delta))
	row := "+ | 1 * (3,) | 12 B | Parameter | float32 | helpers_test.go:68 tracker_test.take"
	_, table, _ := strings.Cut(delta.String(), "\n")
	assert.Equal(t, row, regexp.MustCompile(" +").ReplaceAllString(table, " "))
	for _, c := range delta {
		assert.Equal(t, row, c.String())
	}
	for _, g := range tr.Snapshot().Sub(nil) {
		assert.Equal(t, row, g.String())
	}
}

func TestDeltaRoundTrip(t *testing.T) {
	want := example(t).Sub(nil)
	text, err := json.Marshal(want)
	require.NoError(t, err)
	var got snapshot.Delta
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, want, got)
	assert.True(t, got.Sum() == want.Sum())

	text, err = json.Marshal(snapshot.Delta{})
	require.NoError(t, err)
	assert.JSONEq(t, `{"schema": "gpumemtrack.delta", "version": 2, "changes": []}`, string(text))
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Empty(t, got)
}

func TestReadSnapshotSaysWhatIsWrong(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, example(t).WriteJSON(&text))
	whole := text.String()
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "ends before"},
		{"torn", whole[:len(whole)-20], "ends before"},
		{"another schema", `{"schema": "torch"}`, `the schema is "torch", want "gpumemtrack.snapshot"`},
		{"a newer version", strings.Replace(whole, `"version":4`, `"version":5`, 1), "of version 5, this program reads versions up to 4"},
		{"no such frame", strings.Replace(whole, `[0,1,`, `[0,99,`, 1), "frame 99 of"},
		{"no such dtype", strings.Replace(whole, `"dtype":"float32"`, `"dtype":"float33"`, 1), "float33"},
		{"no such kind", strings.Replace(whole, `"kind":"Parameter"`, `"kind":"\u0007"`, 1), `kind "\a"`},
		{"no such device", strings.Replace(whole, `"ordinal":0`, `"ordinal":1000000000`, 1), "device 1000000000"},
		{"a negative device", strings.Replace(whole, `"ordinal":0`, `"ordinal":-1`, 1), "device -1"},
		{"no such stack", strings.Replace(whole, `"stack":0`, `"stack":99`, 1), "stack 99 of"},
		{"no such call site", strings.Replace(whole, `"call_site":0`, `"call_site":-4`, 1), "site -4 of"},
		{"a negative count", strings.Replace(whole, `"live_count":3`, `"live_count":-3`, 1), "-3 live"},
		{"a negative dimension", strings.Replace(whole, `[64,3,3,3]`, `[-64,3,3,3]`, 1), "is negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NotEqual(t, whole, test.text)
			_, err := snapshot.Read(strings.NewReader(test.text))
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "read snapshot: ")
		})
	}
}

func TestReadDeltaThatDoesNotAddUp(t *testing.T) {
	text, err := json.Marshal(example(t).Sub(nil))
	require.NoError(t, err)
	var d snapshot.Delta
	require.ErrorContains(t, json.Unmarshal(bytes.Replace(text, []byte(`"count":3`), []byte(`"count":4`), 1), &d), "add up to")
}

// brokenWriter fails after n bytes.
type brokenWriter struct{ n int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errors.New("broken pipe")
	}
	return len(p), nil
}

func TestSnapshotToABrokenWriter(t *testing.T) {
	require.ErrorContains(t, example(t).WriteJSON(&brokenWriter{n: 10}), "write snapshot: broken pipe")
}

func FuzzReadSnapshot(f *testing.F) {
	f.Add([]byte(`{"schema":"gpumemtrack.snapshot","version":1,"sites":[{"kind":"Tensor","dtype":"int4","shape":[3],"stack":-1,"live_count":1,"total_count":1}],"allocations":[{"site":0,"address":7}]}`))
	f.Add([]byte(`{"schema":"gpumemtrack.snapshot","version":1,"stacks":[[{"function":"main.f","file":"f.go","line":3}]],"retired":[{"stack":0,"total":{"count":2,"bytes":9}}]}`))
	f.Add([]byte(older))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := snapshot.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		_ = s.String()
		for range s.Allocations() {
		}
		var out bytes.Buffer
		require.NoError(t, s.WriteJSON(&out))
		again, err := snapshot.Read(&out)
		require.NoError(t, err)
		require.Equal(t, slices.Collect(s.CallSites()), slices.Collect(again.CallSites()))
	})
}

// firstWrite notes the heap at the first write.
type firstWrite struct{ heap uint64 }

func (w *firstWrite) Write(p []byte) (int, error) {
	if w.heap == 0 {
		w.heap = heap()
	}
	return len(p), nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestSnapshotIsWrittenInLittleMemory: nor are the blocks of the cache's segments,
// of which there are as many as buffers, put together first.
func TestSnapshotIsWrittenInLittleMemory(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	for range 100_000 {
		take(t, tr, tracker.Input, 1)
	}
	s := tr.Snapshot()
	var w firstWrite
	before := heap()
	require.NoError(t, s.WriteJSON(&w))
	assert.Less(t, int64(w.heap)-int64(before), int64(2<<20))
	runtime.KeepAlive(s)
}

// TestReservedIsOfTheInstant: beside a program that gives its memory back all the time, what is reserved is the cache's
// at the instant of a snapshot or a mark.
func TestReservedIsOfTheInstant(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	var done atomic.Bool
	var working sync.WaitGroup
	defer working.Wait()
	defer done.Store(true)
	working.Go(func() {
		for !done.Load() {
			b, err := tr.AllocBytes(alloc.GiB, tracker.Activation)
			if assert.NoError(t, err) {
				assert.NoError(t, b.Free())
			}
			_, err = tr.ClearCache()
			assert.NoError(t, err)
		}
	})
	for range 20_000 {
		s := tr.LightSnapshot()
		require.Equal(t, s.Cache.Reserved.Bytes.Current, s.Reserved)
	}
}
