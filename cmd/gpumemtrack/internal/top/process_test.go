package top

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestShareOfAProcessor(t *testing.T) {
	table, begin := newProcessTable(), time.Now()
	at := func(started, used, passed time.Duration) float64 {
		table.before, table.now = table.now, make(map[int]cpuTime)
		return table.share(7, cpuTime{started, used, begin.Add(passed)})
	}
	assert.EqualValues(t, -1, at(1, 0, 0))
	assert.InDelta(t, 250, at(1, 5*time.Second, 2*time.Second), 1e-9)
	assert.Zero(t, at(1, 5*time.Second, 3*time.Second))
	assert.EqualValues(t, -1, at(1, 6*time.Second, 3*time.Second), "no time has passed")
	assert.EqualValues(t, -1, at(2, 7*time.Second, 4*time.Second), "another process of this number")
}

func TestAgeCell(t *testing.T) {
	for want, age := range map[string]time.Duration{
		"-": -1, "0s": 0, "59s": 59999 * time.Millisecond, "1m0s": time.Minute, "59m59s": time.Hour - 1, "5h12m": 5*time.Hour + 12*time.Minute + 30*time.Second,
		"3d4h": 76 * time.Hour, "120d0h": 120 * 24 * time.Hour,
	} {
		assert.Equal(t, want, ageCell(age))
	}
}

func TestHistoryBars(t *testing.T) {
	var h deviceHistory
	var r nvml.Reading
	h.add(r)
	r.Set(nvml.MemoryTotal, 100)
	for used := range 2 * historyLength {
		r.Set(nvml.MemoryUsed, float64(min(used, 100)))
		r.Set(nvml.Utilization, 50)
		h.add(r)
	}
	assert.Len(t, h.memory, historyLength)
	assert.EqualValues(t, 1, h.memory[historyLength-1])
	assert.EqualValues(t, 0.5, h.busy[historyLength-1])
	assert.Equal(t, "   ▁ ▁▅█", historyBars([]float64{0, math.NaN(), 0.01, 0.5, 1}, 8).text())
	assert.Equal(t, "▅█", historyBars([]float64{0, math.NaN(), 0.01, 0.5, 1}, 2).text())
}

func TestTopShowsFacts(t *testing.T) {
	sample := aSample(1)
	pod := "pod 7f3a1c52-0b1d-4c1e-9d55-0123456789ab, containerd 0123456789ab"
	sample.Devices[0].Processes[1].processFacts = processFacts{User: "someone-long", Container: pod, Age: 90 * time.Second, CPU: 123.4}
	sample.Devices[0].Processes[1].SM = 61
	for range 3 {
		sample.Devices[0].deviceHistory.memory = append(sample.Devices[0].deviceHistory.memory, 0.1)
		sample.Devices[0].deviceHistory.busy = append(sample.Devices[0].deviceHistory.busy, 0.9)
	}
	for width, want := range map[int][]string{
		80: {"USER", "CPU", "so…-long", "123 %", "101 runs in " + pod}, 100: {"AGE", "1m30s", "SM", "61 %"}, 120: {"▁▁▁"}, 140: {"CONTAINER", "pod 7f3…erd 0123456789ab"}, 160: {"▁▁▁", "███"},
	} {
		text := strings.Join(drawTopText(new(topView), sample, width, 24), "\n")
		for _, w := range want {
			assert.Contains(t, text, w, width)
		}
		for row := range strings.SplitSeq(text, "\n") {
			assert.LessOrEqual(t, len([]rune(row)), width, "%d: %s", width, row)
		}
	}
	out := topJSON(sample).Devices[0]["processes"].([]topProcessJSON)
	assert.Nil(t, out[0].User)
	assert.Nil(t, out[0].Age)
	assert.Nil(t, out[0].CPU)
	assert.Nil(t, out[0].Container)
	assert.Nil(t, out[0].SM)
	assert.EqualValues(t, 61, *out[1].SM)
	assert.Equal(t, pod, *out[1].Container)
	assert.EqualValues(t, 90, *out[1].Age)
}

// stub stands for a watcher that sees nothing.
type stub struct{ closed *atomic.Int32 }

func (stub) Sync()                     {}
func (stub) Sources() []*attach.Source { return nil }
func (s stub) Close() error            { s.closed.Add(1); return nil }

// TestTopAttaches presses the key: once to attach, on another process to change, and again to let go.
func TestTopAttaches(t *testing.T) {
	src, err := cli.OpenSource("sim")
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	w := newTopWatch(src, devices, nil)
	var closed atomic.Int32
	w.attach = func(pid int) (watched, error) {
		if pid == 9 {
			return nil, errors.New("no such process")
		}
		return stub{&closed}, nil
	}
	page := func() string {
		var text []string
		for _, p := range w.latest().Pages {
			for _, l := range pageLines(p, 80, 5) {
				text = append(text, l.text())
			}
		}
		return strings.Join(text, "\n")
	}
	see := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(page(), text) }, time.Minute, time.Millisecond, text)
	}
	w.toggle(t.Context(), 7, time.Millisecond)
	see("attached to 7: it has not called the CUDA driver since")
	w.toggle(t.Context(), 9, time.Millisecond)
	see("attach to 9: no such process")
	w.toggle(t.Context(), 7, time.Millisecond)
	see("attached to 7")
	w.toggle(t.Context(), 7, time.Millisecond)
	assert.Empty(t, page())
	w.detach()
	assert.EqualValues(t, 2, closed.Load())
}

func TestTopLoopAttaches(t *testing.T) {
	src, err := cli.OpenSource("sim")
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	screen := tcell.NewSimulationScreen("")
	require.NoError(t, screen.Init())
	defer screen.Fini()
	w := newTopWatch(src, devices, nil)
	asked := make(chan int, 1)
	var closed atomic.Int32
	w.attach = func(pid int) (watched, error) {
		asked <- pid
		return stub{&closed}, nil
	}
	w.sample(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- topLoop(ctx, screen, w, time.Second) }()
	screen.InjectKey(tcell.KeyRune, 'a', 0)
	assert.Equal(t, os.Getpid(), <-asked)
	cancel()
	require.NoError(t, <-ended)
	assert.EqualValues(t, 1, closed.Load(), "its probes are gone at the end")
}

func TestAttachedPageAddsUpDevices(t *testing.T) {
	page := topPage{Attached: true, URL: "attached to 7"}
	one, two := newTracker(t).Snapshot(), newTracker(t).Snapshot()
	two.Live.Bytes = alloc.GiB
	page.take([]*snapshot.Snapshot{one, two}, nil, nil)
	assert.Equal(t, alloc.GiB+alloc.MiB, page.Live)
	assert.Equal(t, "2 devices", page.Device)
}
