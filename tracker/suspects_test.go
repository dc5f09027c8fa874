package tracker_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// server decodes requests, of which it forgets some, and previews, of which it forgets none.
type server struct{ *world }

func (s server) decode() *tracker.Buffer { return s.ok(s.tr.AllocBytes(alloc.MiB, tracker.Activation)) }

func (s server) handle(forget bool) {
	if b := s.decode(); !forget {
		s.freeAfter(50*ms, b)
	}
}

func (s server) preview() { s.freeAfter(20*ms, s.decode()) }

// forgetful serves a hundred requests and ten previews a second for 20 s, and forgets
// one request a second.
func forgetful(t *testing.T) *world {
	s := server{newWorld(t, 0)}
	n := 0
	s.every(10*ms, func() {
		if n++; n%10 == 0 {
			s.preview()
		}
		if n%200 < 100 { // two calls, one path
			s.handle(n%100 == 50)
		} else {
			s.handle(n%100 == 50)
		}
	})
	s.run(20 * second)
	return s.world
}

func TestSuspectsTellTheWay(t *testing.T) {
	w := forgetful(t)
	suspects := w.tr.Suspects()
	require.Len(t, suspects, 1)
	s := suspects[0]
	assert.Equal(t, mem.Tally{Count: 19, Bytes: 19 * alloc.MiB}, s.Tally, "of the twenty, one is not old enough")
	asJSON, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Contains(t, string(asJSON), `"count":19,"bytes":19922944,"youngest_ns":1500000000,"oldest_ns":19500000000,"age_ns":1073741824,"freed_late":0,"freed":2174,"usual_ns":67108864}`)
	var again leaks.Suspect
	require.NoError(t, json.Unmarshal(asJSON, &again))
	assert.Equal(t, s, again)
	assert.Contains(t, s.CallSite.Function, "server.decode")
	require.Greater(t, len(s.Path), 3)
	assert.Equal(t, s.CallSite, s.Path[0])
	assert.NotZero(t, s.Path[1].Line)
	assert.Zero(t, s.Path[2].Line, "the path goes through two lines of it")

	text := strings.Split(s.String(), "\n")
	assert.Regexp(t, `^suspects_test\.go:\d+ tracker_test\.server\.decode looks forgotten: 19 buffers, 19\.0 MiB, 1\.5 to 20 s old; 0 of 19 that became older than 1\.1 s were freed since, 2,174 others before 68 ms$`, text[0])
	assert.Regexp(t, `^\tpath: tracker_test\.server\.decode <- server\.handle <- forgetful\.func1 <- `, text[1])
	assert.Equal(t, "\talso: tracker_test.server.decode <- server.preview, 9.1 %", text[2])
	assert.Len(t, text, 3)
}

func TestSuspectsAreNarrowedByOptions(t *testing.T) {
	w := forgetful(t)
	assert.Len(t, w.tr.Suspects(leaks.IgnoreKinds(tracker.Gradient)), 1)
	assert.Empty(t, w.tr.Suspects(leaks.IgnoreKinds(tracker.Activation)))
	assert.Empty(t, w.tr.Suspects(leaks.IgnoreFunction("github.com/gpumemtrack/gpumemtrack/tracker_test.server.handle")))
	assert.Empty(t, w.tr.Suspects(leaks.Since(w.tr.LightSnapshot())))
}

func TestSuspectsEndWithTheTracker(t *testing.T) {
	w := forgetful(t)
	require.NoError(t, w.tr.Close())
	assert.Empty(t, w.tr.Suspects())
	assert.Empty(t, leaks.Growing(w.tr.Snapshot()))
}

// TestWhatIsKeptFromTheBeginning: buffers of the first seconds that stay are no suspects for long.
func TestWhatIsKeptFromTheBeginning(t *testing.T) {
	w := newWorld(t, 0)
	n := 0
	w.every(10*ms, func() {
		b := w.ok(w.tr.AllocBytes(alloc.MiB, tracker.Activation))
		if n++; n > 300 || n%10 != 0 {
			w.freeAfter(5*ms, b)
		}
	})
	w.run(20 * second)
	assert.Empty(t, w.tr.Suspects())
}

// TestSuspectsOfShapesThatNeverRepeat: the ledger sums up what such shapes had.
func TestSuspectsOfShapesThatNeverRepeat(t *testing.T) {
	w := newWorld(t, 0)
	n := 0
	w.every(10*ms, func() {
		n++
		if b := w.ok(w.tr.AllocBytes(alloc.Bytes(n), tracker.Activation)); n%100 != 0 {
			w.freeAfter(5*ms, b)
		}
	})
	w.run(300 * second)
	for range 5 {
		require.Len(t, w.tr.Suspects(), 1)
		w.run(second)
	}
}

// TestMemoryOfOthersIsSuspectToo: of Register and Unregister.
func TestMemoryOfOthersIsSuspectToo(t *testing.T) {
	w := newWorld(t, 0)
	ptr := alloc.Ptr(1 << 40)
	w.every(10*ms, func() {
		ptr += 1 << 20
		here := ptr
		require.NoError(t, w.tr.Register(here, alloc.DeviceMemory, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Activation))
		if here>>20%100 != 0 {
			w.after(5*ms, func() { unregister(t, w.tr, here) })
		}
	})
	w.run(30 * second)
	require.Len(t, w.tr.Suspects(), 1)
}

func TestLeaksAsJSON(t *testing.T) {
	w := forgetful(t)
	w.every(second, func() { w.ok(w.tr.AllocBytes(1, tracker.Gradient)) })
	w.run(40 * second)
	require.Len(t, leaks.Growing(w.tr.Snapshot()), 2, "what decode forgets grows too")
	for name, test := range map[string]struct {
		of   any
		want []string
	}{
		"suspect": {w.tr.Suspects()[0], []string{"call_site", "path", "others", "count", "bytes", "youngest_ns", "oldest_ns", "age_ns", "freed_late", "usual_ns", "freed"}},
		"growth":  {leaks.Growing(w.tr.Snapshot())[0], []string{"call_site", "path", "others", "count", "bytes", "age_ns", "freed_since", "hourly", "hourly_at_first"}},
		"leak":    {w.tr.Leaks()[0], []string{"kind", "dtype", "shape", "memory", "section", "stack", "call_site", "count", "bytes", "unreachable_count"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(test.of)
			require.NoError(t, err)
			var keys map[string]any
			require.NoError(t, json.Unmarshal(text, &keys))
			for _, key := range test.want {
				assert.Contains(t, keys, key)
			}
			assert.Len(t, keys, len(test.want))
		})
	}
}

// TestSuspectsBesideAllocations: any goroutine may ask while others allocate and free.
func TestSuspectsBesideAllocations(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			for range 1000 {
				b, err := tr.AllocBytes(alloc.KiB, tracker.Activation)
				assert.NoError(t, err)
				assert.NoError(t, b.Free())
				tr.Track()
			}
		})
	}
	for range 20 {
		assert.Empty(t, tr.Suspects(), "nothing is a second old, or all waited together")
		_ = leaks.Growing(tr.Snapshot())
	}
	working.Wait()
}
